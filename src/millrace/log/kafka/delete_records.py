"""DeleteRecords: a client moves the start of its partitions forward [L23].

In: offsets, -1 for all that is committed. Out: where each log starts now; POLICY_VIOLATION where a floor forbids it,
OFFSET_OUT_OF_RANGE above the high watermark. Answered when the controller has recorded it and this leader has cut.
"""

from __future__ import annotations

import structlog

from millrace.errors import MillraceError, OffsetOutOfRange
from millrace.log.kafka.lookup import partition_for
from millrace.log.kafka.principal import Principal
from millrace.log.kafka.shell import PRINCIPAL, Service
from millrace.log.partition import Partition
from millrace.wire.kafka.codec import Fields

log = structlog.get_logger(__name__)

ALL = -1


async def delete_records(service: Service, version: int, fields: Fields) -> Fields:
    principal: Principal = fields[PRINCIPAL]
    return {
        "topics": [
            {"name": topic["name"], "partitions": [
                await _delete(service, topic["name"], wanted, principal) for wanted in topic["partitions"]]}
            for topic in fields["topics"]
        ]
    }


async def _delete(service: Service, name: str, wanted: Fields, principal: Principal) -> Fields:
    index: int = wanted["partition_index"]
    try:
        partition = partition_for(service.shell, principal, name.encode(), index)
        start = await service.shell.delete_records(partition, _offset(partition, wanted["offset"]))
    except MillraceError as error:
        log.info("records are not deleted", topic=name, partition=index, why=str(error))
        return {"partition_index": index, "low_watermark": -1, "error_code": error.kafka_code}
    return {"partition_index": index, "low_watermark": start, "error_code": 0}


def _offset(partition: Partition, wanted: int) -> int:
    error = partition.refuse_read(-1)
    if error is not None:
        raise error
    end = partition.latest_offset()
    if wanted == ALL:
        return end
    if not 0 <= wanted <= end:
        raise OffsetOutOfRange(f"{wanted} is outside 0..{end}")
    return wanted
