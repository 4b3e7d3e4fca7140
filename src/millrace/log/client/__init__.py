"""Our own client of the log: `LogClient` in asyncio, `PlainClient` blocking."""

from millrace.log.client.client import LogClient
from millrace.log.client.metadata import PartitionInfo, TopicInfo
from millrace.log.client.plain import PlainClient, PlainWriter
from millrace.log.client.reading import Fetched
from millrace.log.client.writer import Writer
from millrace.wire.records import Record

__all__ = [
    "Fetched", "LogClient", "PartitionInfo", "PlainClient", "PlainWriter", "Record", "TopicInfo", "Writer",
]
