"""Tables that broke, for a changefeed that stops there [S12]."""

from __future__ import annotations

from millrace.core.delivery.copies import Copies
from millrace.core.feeds.bases import base
from millrace.core.feeds.breaks import Breaks
from millrace.model.progress import Change, CopyStarted, Mark

T = 16400


def emptied(why: str) -> Change:
    return Change(1, T, 20, 0, "truncate", text=why, begins=True)


def copy(number: int, why: str = "") -> CopyStarted:
    return CopyStarted(1, number, T, f"copy.{number}", 1, 0, "watermark", why=why)


def test_S12_a_table_breaks_at_its_truncation_and_at_its_copy_and_one_by_hand_mends_it() -> None:
    breaks = Breaks(since=10)
    assert breaks.replay(10, emptied("renamed")) == T
    assert breaks.replay(11, copy(7, "renamed")) == T
    assert breaks.broken == {T: "renamed"}
    assert breaks.replay(12, copy(8)) is None
    assert breaks.broken == {}
    assert breaks.replay(13, copy(7, "renamed")) is None, "said again by the next reader"
    assert (breaks.broken, breaks.behind) == ({}, {T: 11})


def test_S12_what_broke_before_the_changefeed_was_made_does_not_stop_it() -> None:
    breaks = Breaks(since=12)
    assert breaks.replay(10, emptied("renamed")) is None
    assert breaks.replay(11, copy(7, "renamed")) is None
    assert (breaks.broken, breaks.behind) == ({}, {})


def test_S12_truncations_of_the_application_and_of_a_generation_break_nothing() -> None:
    breaks = Breaks()
    assert breaks.replay(1, Change(1, T, 20, 0, "truncate", text="TRUNCATE t")) is None
    assert breaks.replay(2, emptied("")) is None


def test_S12_a_table_that_broke_begins_with_a_copy_from_later_or_not_at_all() -> None:
    copies = Copies()
    copies.replay(0, Mark(1, 5, "s", 1, True, ()))
    copies.replay(1, copy(1))
    copies.replay(4, copy(2, "renamed"))
    whole = {1: True, 2: True, 3: True}
    books = copies.of(T, "f")
    assert base(copies, books, starts={0: 0}, whole=whole) is not None
    assert base(copies, books, starts={0: 0}, whole=whole, behind=4) is None
    copies.replay(6, copy(3))
    found = base(copies, copies.of(T, "f"), starts={0: 0}, whole=whole, behind=4)
    assert found is not None
    assert [book.number for book in found.skipped] == [1, 2]
