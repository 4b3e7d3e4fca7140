"""Where a log begins and ends, by time and by epoch: ListOffsets and OffsetForLeaderEpoch.

Out: ListOffsets gives offsets below the high watermark only; a new leader whose high watermark has not reached the
start of its epoch says so instead of an offset that would seem to go back. OffsetForLeaderEpoch gives where an epoch
ends in the leader's log, committed or not, so that no consumer takes an old high watermark for truncation [L9].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.errors import LeaderNotAvailable, MillraceError, OffsetNotAvailable
from millrace.log.kafka.lookup import partition_named
from millrace.log.kafka.principal import refuse_topic
from millrace.log.kafka.shell import PRINCIPAL, Service
from millrace.log.partition import Partition
from millrace.wire.kafka.codec import Fields

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
NOT_AVAILABLE_FROM = 5      # older clients do not know the error and are told that there is no leader yet


def list_offsets(service: Service, version: int, fields: Fields) -> Fields:
    def one(partition: Partition, wanted: Fields) -> Fields:
        if wanted["timestamp"] not in (LATEST, EARLIEST):      # by the ends tools show a changefeed's lag [L21]
            refuse_topic(fields[PRINCIPAL], partition.name)
        try:
            offset, timestamp = _find(partition, wanted["timestamp"])
        except OffsetNotAvailable as error:
            if version >= NOT_AVAILABLE_FROM:
                raise
            raise LeaderNotAvailable(str(error)) from error
        return {"offset": offset, "timestamp": timestamp, "leader_epoch": partition.replica.leader_epoch}

    return {"topics": _each(service, fields, one)}


def _find(partition: Partition, timestamp: int) -> tuple[int, int]:
    """(offset, timestamp), each -1 where there is none."""
    if timestamp == LATEST:
        return partition.latest_offset(), -1
    if timestamp == EARLIEST:
        return partition.earliest_offset(), -1
    if timestamp == MAX_TIMESTAMP:
        found = partition.newest_record()
    else:
        found = partition.offset_for_timestamp(timestamp) if timestamp >= 0 else None
    return found if found is not None else (-1, -1)


def offset_for_leader_epoch(service: Service, version: int, fields: Fields) -> Fields:
    def one(partition: Partition, wanted: Fields) -> Fields:
        refuse_topic(fields[PRINCIPAL], partition.name)
        if wanted["leader_epoch"] < 0:
            return {"leader_epoch": -1, "end_offset": -1}
        epoch, end = partition.replica.end_of_epoch(wanted["leader_epoch"])
        return {"leader_epoch": epoch, "end_offset": end}

    return {"topics": _each(service, fields, one)}


def _each(
    service: Service, fields: Fields, one: Callable[[Partition, Fields], Fields]
) -> list[dict[str, Any]]:
    answered = []
    for topic in fields["topics"]:
        name = topic["name"].encode()
        results = []
        for wanted in topic["partitions"]:
            result: Fields = {"partition": wanted["partition"]}
            try:
                partition = partition_named(service.shell, name, wanted["partition"])
                error = partition.refuse_read(wanted.get("current_leader_epoch", -1))
                if error is not None:
                    raise error
                result.update(one(partition, wanted))
            except MillraceError as error:
                result["error_code"] = error.kafka_code
            results.append(result)
        answered.append({"name": topic["name"], "partitions": results})
    return answered
