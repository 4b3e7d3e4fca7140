"""Transactions of a snapshot, over wrap-around and those that were running [S5, S12]."""

from __future__ import annotations

import pytest

from millrace.core.sources.joining import Seen

EPOCH = 1 << 32


@pytest.mark.parametrize(("snapshot", "xid", "shown"), [
    ("100:110:100,105", 99, True), ("100:110:100,105", 100, False), ("100:110:100,105", 101, True),
    ("100:110:100,105", 105, False), ("100:110:100,105", 109, True), ("100:110:100,105", 110, False),
    ("100:110:100,105", 111, False), ("100:100:", 99, True), ("100:100:", 100, False),
    # The stream has 32 bits; ids of the snapshot go on counting.
    (f"{EPOCH + 5}:{EPOCH + 9}:{EPOCH + 5}", EPOCH - 1, True), (f"{EPOCH + 5}:{EPOCH + 9}:{EPOCH + 5}", 5, False),
    (f"{EPOCH + 5}:{EPOCH + 9}:{EPOCH + 5}", 8, True), (f"{EPOCH + 5}:{EPOCH + 9}:{EPOCH + 5}", 9, False),
    # Two thousand million transactions later: in doubt nothing is left out.
    ("100:110:", 110 + (1 << 31), False),
])
def test_S12_a_transaction_is_in_the_snapshot_or_behind_it(snapshot: str, xid: int, shown: bool) -> None:
    assert Seen.parse(snapshot).shows(xid) is shown


def test_S12_a_snapshot_is_over_when_all_that_ran_has_ended() -> None:
    seen = Seen.parse("100:110:100,105")
    assert not seen.is_over(109)
    assert seen.is_over(110)
