"""Copies that are begun are taken over at once, the others when it is their turn [V11; decision 8]."""

from __future__ import annotations

from uuid import UUID

import pytest

from millrace.core.delivery.copies import SKIPPED, Book, Copies
from millrace.core.delivery.meeting import BEGINNING, FLAWS, Meeting
from millrace.core.sources.reader import NO_FLAWS
from millrace.model.positions import Point
from millrace.model.progress import CopyStarted, HighMark, LowMark, Manifest, Range

PARTITION, OTHER = 0, 1


def books(count: int, *, partition: int = PARTITION) -> list[Book]:
    """Copies of one table, each with a window of ten records that has landed."""
    copies = Copies()
    records = []
    for n in range(1, count + 1):
        manifest = Manifest(1, n, 0, 1, 7, "watermark", UUID(int=1), (Range(partition, 0, 10),), 10, 100)
        records += [CopyStarted(1, n, 7, f"copy-{n}", 1, 0, "watermark"), LowMark(1, n, 0, 1, 5), manifest,
                    HighMark(1, n, 0, 1, 9)]
    for offset, record in enumerate(records):
        copies.replay(offset, record)
    return copies.of(7, "orders")


def met(told: list[Book], stored: dict[int, Point], flaws: frozenset[str] = NO_FLAWS) -> Meeting:
    meeting = Meeting(PARTITION, flaws)
    for book in meeting.unread(told):
        meeting.read(book, stored.get(book.number))
    return meeting


def numbers(ones: list[Book]) -> list[int]:
    return [book.number for book in ones]


def whole(book: Book) -> Point:
    return Point(book.portions(PARTITION, BEGINNING)[-1].end, 0)


def test_V11_of_hundreds_that_nobody_has_begun_one_is_taken_over() -> None:
    told = books(300)
    meeting = met(told, {})
    assert meeting.unread(told) == []
    assert numbers(meeting.to_take()) == [1]
    meeting.taken(told[0], BEGINNING)
    assert not meeting.must_take
    assert numbers(meeting.to_take()) == [], "the others wait for their turn"
    assert len(meeting.waiting()) == 299


def test_V11_all_that_are_begun_are_taken_over_before_anything_is_planned() -> None:
    told = books(5)
    meeting = met(told, {2: Point(1, 0), 4: BEGINNING, 1: whole(told[0])})
    assert meeting.must_take
    assert numbers(meeting.to_take()) == [2, 4], "1 is done, 3 and 5 nobody has begun"


def test_V11_the_next_is_taken_over_when_it_is_its_turn() -> None:
    told = books(3)
    meeting = met(told, {})
    meeting.taken(meeting.to_take()[0], BEGINNING)
    meeting.put(1)
    meeting.is_due(2)
    assert meeting.must_take
    assert numbers(meeting.to_take()) == [2]
    assert [book.number for book in meeting.waiting()] == [3]
    meeting.taken(told[1], SKIPPED)
    assert not meeting.must_take, "somebody said meanwhile that nothing of it is put"
    assert meeting.unread(told) == []


def test_V11_what_has_no_row_for_the_partition_is_done_without_a_position() -> None:
    told = books(2, partition=OTHER)
    meeting = met(told, {}, frozenset({"first"}))
    assert meeting.waiting() == []
    assert meeting.unread(told) == []


@pytest.mark.parametrize("flaw", FLAWS)
def test_V11_planted_mistakes_show(flaw: str) -> None:
    told = books(3)
    begun = {2: Point(1, 0)} if flaw == "begun" else {}
    expected = [2] if flaw == "begun" else [1]
    assert numbers(met(told, begun).to_take()) == expected
    assert numbers(met(told, begun, frozenset({flaw})).to_take()) != expected
