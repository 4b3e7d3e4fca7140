"""LSNs have an order within a generation only: what a checkpoint says after a restore [S12, C6]."""

from __future__ import annotations

from millrace.core.feeds.checkpoint import Committed, Progress
from millrace.core.feeds.source_story import SourceStory
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.progress import End, Mark
from millrace.model.spans import TableId, TablePartition

PART = TablePartition(TableId("shop", 16400), 0)
OTHER = TablePartition(TableId("shop", 16401), 0)


def told(*marks: Mark) -> Progress:
    """As a maintainer reads them: folded."""
    story, progress = SourceStory(ChangefeedSpec(id="f", source="shop", sink="kafka:")), Progress()
    for mark in marks:
        story.replay(0, mark)
    fresh = story.take_mark()
    assert fresh is not None
    progress.on_mark(*fresh[:2], full=fresh.full, generation=fresh.generation, begins=fresh.begins)
    return progress


def mark(generation: int, resolved: int, end: int, *, full: bool = True) -> Mark:
    return Mark(generation, resolved, "s", 1, full, (End(16400, 0, end), End(16401, 0, 0)))


def lowest(progress: Progress, at: int, resolved: int) -> int | None:
    progress.on_position(PART, Committed(at, resolved))
    progress.on_position(OTHER, Committed(0, 0))
    return progress.lowest(lambda table: True)[0]


def test_S12_C6_A8_nothing_is_said_before_all_stand_where_the_generation_begins() -> None:
    progress = told(mark(1, 900, 10), mark(2, 50, 12), mark(2, 60, 15))
    assert progress.generation == 2
    assert lowest(progress, 10, 900) is None, "900 is of another scale"
    assert lowest(progress, 12, 50) == 50
    assert lowest(progress, 15, 60) == 60


def test_S12_C6_A8_the_first_generation_begins_nowhere() -> None:
    progress = told(mark(1, 900, 10))
    assert lowest(progress, 3, 300) == 300


def test_S12_A8_a_table_that_does_not_count_holds_nothing() -> None:
    progress = told(mark(1, 900, 10), mark(2, 50, 12))
    progress.on_position(PART, Committed(3, 300))
    progress.on_position(OTHER, Committed(0, 0))
    assert progress.lowest(lambda table: table != PART.table)[0] == 50
