"""What may be asked of the home of positions: one call for one stored position [L21, P3].

Encoded as msgpack arrays that begin with their tag, behind the version byte of stored positions; they travel in the
private call MovePosition.
"""

from __future__ import annotations

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.model.positions import NOT_SHOWN, VERSION, Claim, TargetEnd
from millrace.model.tables import Lsn


class PositionCall(msgspec.Struct, frozen=True, array_like=True, tag_field="t"):
    pass


class ReadPosition(PositionCall, frozen=True, array_like=True, tag="read"):
    pass


class CreatePosition(PositionCall, frozen=True, array_like=True, tag="create"):
    epoch: int
    offset: int
    row: int
    resolved: Lsn
    writer_id: int


class TakePosition(PositionCall, frozen=True, array_like=True, tag="take"):
    epoch: int
    new_writer_id: int | None = None


class ClosePosition(PositionCall, frozen=True, array_like=True, tag="close"):
    epoch: int


class ForgetPosition(PositionCall, frozen=True, array_like=True, tag="forget"):
    epoch: int


class ClaimPosition(PositionCall, frozen=True, array_like=True, tag="claim"):
    claim: Claim


class CommitPosition(PositionCall, frozen=True, array_like=True, tag="commit"):
    """By compare-and-set on (epoch, from)."""

    epoch: int
    from_offset: int
    from_row: int
    to_offset: int
    to_row: int
    ends: tuple[TargetEnd, ...]
    resolved: Lsn
    shown: int = NOT_SHOWN


class ShowPosition(PositionCall, frozen=True, array_like=True, tag="show"):
    """To tools; nothing else changes."""

    epoch: int
    shown: int


AnyPositionCall = (
    ReadPosition | CreatePosition | TakePosition | ClosePosition | ForgetPosition | ClaimPosition | CommitPosition
    | ShowPosition
)

_decoder: msgspec.msgpack.Decoder[AnyPositionCall] = msgspec.msgpack.Decoder(AnyPositionCall)


def encode_call(call: AnyPositionCall) -> bytes:
    return bytes([VERSION]) + msgspec.msgpack.encode(call)


def decode_call(data: bytes) -> AnyPositionCall:
    if not data:
        raise Malformed("position call without version")
    if data[0] > VERSION:
        raise NewerFormat(f"position call of version {data[0]}, this is version {VERSION}")
    try:
        return _decoder.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"position call: {error}") from error
