"""FenceWriter, a private call: from here on batches of this writer with a lower epoch are refused [L28].

In: (topic, partition, writer id, epoch). Out: the fence's offset, once it is committed. A fence of the present epoch
changes nothing and returns the first one's offset; a lower one is refused. docs/formats.md has the bytes.
"""

from __future__ import annotations

from millrace import limits
from millrace.errors import InvalidRequest, MillraceError
from millrace.log.kafka.client import Client
from millrace.log.kafka.lookup import partition_named
from millrace.log.kafka.shell import Service
from millrace.wire.kafka import apis, hot
from millrace.wire.kafka.codec import APIS, decode

API = APIS[apis.Key.FENCE_WRITER]


def handle(service: Service, client: Client, header: hot.Header, frame: memoryview) -> None:
    fields = decode(API, header.version, frame[header.body :])
    slot = client.slot()

    def answer(error: MillraceError | None, offset: int = -1) -> None:
        told = {"offset": offset} if error is None else {"error_code": error.kafka_code, "error_message": str(error)}
        slot.answer([apis.encode_response(API, header.version, header.correlation, told)])

    try:
        if fields["writer_id"] < 0 or fields["writer_epoch"] < 0:
            raise InvalidRequest("writer id and epoch must not be negative")
        partition = partition_named(service.shell, fields["topic"].encode(), fields["partition"])
        fence = partition.append_fence(fields["writer_id"], fields["writer_epoch"])
    except MillraceError as error:
        answer(error)
        return
    timeout_s = min(max(fields["timeout_ms"], 0) / 1000, limits.PRODUCE_TIMEOUT_MAX_S)
    partition.when_acked(
        fence.end, acks=-1, deadline=service.shell.ports.clock.now() + timeout_s,
        done=lambda error: answer(error, fence.base),
    )
