"""Where partitions begin and end, as their leaders say: those who ask at the same time share a call [L22].

In: a partition. Out: (log start, high watermark), read after it was asked for. Errors: of the leader, or of the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from millrace import limits
from millrace.errors import MillraceError, Unreachable
from millrace.log.client.answers import error_of
from millrace.log.client.conn import Address, Connections
from millrace.log.client.frames import Where
from millrace.log.client.metadata import LANE, Metadata
from millrace.log.client.together import Together

EARLIEST, LATEST = -2, -1
Told = Mapping[Where, Mapping[str, Any]]
Span = tuple[int, int]


class Ends:
    def __init__(self, metadata: Metadata, connections: Connections) -> None:
        self._metadata, self._connections = metadata, connections
        self._leaders: dict[Address, Together[Where, Span]] = {}

    async def of(self, where: Where) -> Span:
        """One try."""
        address = await self._metadata.find_leader(*where)
        if address not in self._leaders:
            self._leaders[address] = Together(
                partial(self._ask, address), size_max=limits.CLIENT_TOPICS_ASKED_MAX,
                calls_max=limits.CLIENT_TOGETHER_MAX)
        return await self._leaders[address].ask(where)

    async def close(self) -> None:
        await asyncio.gather(*(leader.close() for leader in self._leaders.values()))

    async def _ask(self, address: Address, wanted: list[Where]) -> list[Span | MillraceError]:
        conn = await self._connections.get(address, LANE)
        first, last = [_told(answer) for answer in await asyncio.gather(*(
            conn.call("ListOffsets", 7, {"topics": _topics(wanted, which)}) for which in (EARLIEST, LATEST)))]
        return [_span(where, first, last) for where in wanted]


def _topics(wanted: list[Where], which: int) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, int]]] = {}
    for topic, partition in dict.fromkeys(wanted):
        by_topic.setdefault(topic, []).append({"partition": partition, "timestamp": which})
    return [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]


def _told(answer: Mapping[str, Any]) -> Told:
    return {(topic["name"], one["partition"]): one for topic in answer["topics"] for one in topic["partitions"]}


def _span(where: Where, first: Told, last: Told) -> Span | MillraceError:
    if where not in first or where not in last:
        return Unreachable(f"{where[0]}/{where[1]}: missing in the answer")
    for told in (first[where], last[where]):
        if told["error_code"]:
            return error_of(told["error_code"])
    return first[where]["offset"], last[where]["offset"]
