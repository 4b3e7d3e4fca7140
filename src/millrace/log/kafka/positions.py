"""MovePosition, a private call: one stored position of a changefeed, by compare-and-set [L21, P3].

In: (group `millrace.<changefeed>`, source topic id, partition, a call). Out: the position, once what it was read from
is committed, or the refusal by its code in the tree of errors. docs/formats.md has the bytes.
"""

from __future__ import annotations

from millrace.core.groups.calls import Code, Moved, Reply
from millrace.core.groups.groups import OURS
from millrace.errors import InvalidRequest, MillraceError
from millrace.log.kafka.asking import Answered, answered
from millrace.log.kafka.shell import Service
from millrace.model.position_calls import decode_call
from millrace.model.positions import PositionKey, encode_position
from millrace.wire.kafka.codec import Fields


def move_position(service: Service, version: int, fields: Fields) -> Answered:
    group: str = fields["group_id"]
    try:
        if not group.startswith(OURS):
            raise InvalidRequest(f"group {group!r} holds no positions: their names begin with {OURS}")
        call = decode_call(bytes(fields["call"]))
    except MillraceError as error:
        return refused(error)
    key = PositionKey(group.removeprefix(OURS), fields["topic_id"], fields["partition"])
    return answered(lambda told: service.shell.groups.move(group, key, call, told), _fields)


def _fields(reply: Reply | Code) -> Fields:
    if isinstance(reply, Code):
        return {"error_code": reply}
    assert isinstance(reply, Moved)
    if reply.refused is not None:
        return refused(reply.refused)
    return {"position": encode_position(reply.position) if reply.position is not None else None}


def refused(error: MillraceError) -> Fields:
    """What the log refuses for now has a code of Kafka's, and the client asks again; the rest is an answer."""
    if error.retriable and error.kafka_code > 0:
        return {"error_code": error.kafka_code, "error_message": str(error)}
    return {"refused": error.code, "error_message": str(error)}
