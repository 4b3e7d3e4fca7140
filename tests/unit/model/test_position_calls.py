"""Calls to the home of positions, as bytes."""

from __future__ import annotations

from uuid import UUID

import pytest

from millrace.errors import Malformed, NewerFormat
from millrace.model.position_calls import (
    AnyPositionCall,
    ClaimPosition,
    ClosePosition,
    CommitPosition,
    CreatePosition,
    ForgetPosition,
    ReadPosition,
    TakePosition,
    decode_call,
    encode_call,
)
from millrace.model.positions import Claim, TargetEnd

CALLS: list[AnyPositionCall] = [
    ReadPosition(), CreatePosition(1, 2, 3, 4, 5), TakePosition(7), TakePosition(7, 900), ClosePosition(8),
    ForgetPosition(8), ClaimPosition(Claim(1, 2, 3, 4, 5)),
    CommitPosition(1, 2, 3, 4, 5, (TargetEnd(UUID(int=9), 0, 11),), 12),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_L21_a_call_comes_back_as_it_was(call: AnyPositionCall) -> None:
    assert decode_call(encode_call(call)) == call


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x91\xa4what", b"\x01\x92\xa4take\xa1x", b"\x01\xc1"])
def test_L21_other_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_call(data)


def test_L19_a_later_version_is_refused() -> None:
    with pytest.raises(NewerFormat):
        decode_call(b"\x02" + encode_call(ReadPosition())[1:])
