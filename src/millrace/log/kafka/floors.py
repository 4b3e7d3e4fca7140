"""Floors, a private call: who holds which partition from where on [L23, F10].

In: a call about floors, at any broker. Out: what the controller answered once its records are durable, or the refusal
by its code in the tree of errors. docs/formats.md has the bytes.
"""

from __future__ import annotations

from millrace import limits
from millrace.errors import MillraceError
from millrace.log.kafka.positions import refused
from millrace.log.kafka.shell import Service
from millrace.model.floors import decode_call, encode_told
from millrace.model.messages import AskFloors, FloorsAnswer
from millrace.wire.kafka.codec import Fields


async def floors(service: Service, version: int, fields: Fields) -> Fields:
    try:
        call = decode_call(bytes(fields["call"]))
        answer = await service.shell.ask_controller(AskFloors(call), limits.LINK_CALL_S)
    except MillraceError as error:
        return refused(error)
    assert isinstance(answer, FloorsAnswer)
    return {"told": encode_told(answer.told)}
