"""A changefeed goes on from another position: when that is due, and what the position means in the log [C6, C7, V9].

    somebody resumes it with a position ─▶ the coordinator's office: wish n, LSN
    a maintainer begins, wish n is not done ─▶ EpochsTaken(e) ─▶ every position closed below e and made anew at the LSN
                                                              ─▶ FeedRewound(n) ─▶ it goes on as any maintainer does

In: what both offices have recorded, `progress`. Out: records, places. Promises: no dispatcher is placed between the
first position that is made anew and FeedRewound, so whoever dies on the way, its successor does all of it again under a
greater epoch and nothing was written in between; once FeedRewound stands, wish n is never done again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millrace.core.delivery.source_marks import At
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.feeds.office import FeedState
from millrace.core.feeds.source_story import Told
from millrace.errors import PositionRefused
from millrace.model.changefeeds import BEGINNING, EpochsTaken, FeedRewound
from millrace.model.progress import Mark, ProgressRecord
from millrace.model.tables import Lsn, TableSchema, lsn_text

FLAWS = {
    "rewound_again": "a wish for another position is done by every maintainer that begins [C4]",
    "rewind_unfenced": "positions are made anew, and who wrote before is not shut out of the targets [C3]",
}


class Rewind(NamedTuple):
    """`begun` is recorded before anything is touched, `done` when every position stands."""

    position: Lsn
    begun: EpochsTaken
    done: FeedRewound

    @property
    def epoch(self) -> int:
        return self.begun.upto


def due(state: FeedState, entry: FeedEntry, *, flaws: frozenset[str] = NO_FLAWS) -> Rewind | None:
    """Before the maintainer does anything else."""
    if not entry.rewinds or (state.rewinds >= entry.rewinds and "rewound_again" not in flaws):
        return None
    lsn = 0 if entry.position == BEGINNING else entry.position
    return Rewind(entry.position, EpochsTaken(state.epoch + 1), FeedRewound(entry.rewinds, lsn))


class Reach:
    """From where to where a source can be read by LSN: its present generation, as far as it is marked."""

    def __init__(self) -> None:
        self.generation = 0
        self.first: Lsn | None = None
        self.resolved: Lsn = 0

    def replay(self, record: ProgressRecord) -> None:
        if not isinstance(record, Mark) or record.generation < self.generation:
            return
        if record.generation > self.generation or self.first is None:
            self.generation, self.first = record.generation, record.resolved
        self.resolved = record.resolved

    def at(self, position: Lsn) -> At | None:
        """None: the beginning. PositionRefused says what can be asked for."""
        if position == BEGINNING:
            return None
        if self.first is None:
            raise PositionRefused("its source has made no mark yet; resume it without a position, or at `beginning`")
        if position < self.first:
            raise PositionRefused(
                f"position {lsn_text(position)} is before {lsn_text(self.first)}, where the source's history in the "
                "log begins; give that or a later one, or `beginning`: with everything that the log has, copies of "
                "tables too")
        if position > self.resolved:
            raise PositionRefused(
                f"position {lsn_text(position)} is ahead of {lsn_text(self.resolved)}, up to which the source is in "
                "the log; give that or an earlier one, or `now`")
        return At(self.generation, position)


def next_change(told: Iterable[Told], at: At, end: int) -> int:
    """The ddl position there: changes up to the LSN have passed. `end`: of what was read."""
    return min((one.number for one in told if At(one.change.generation, one.change.commit_lsn) > at), default=end)


def refuse_unless_whole(table: TableSchema, at: At, *, marked: int, start: int, found: int) -> None:
    """`marked`: no change behind `at` stands before this offset. `start`: of the partition's log. `found`: the first
    record behind `at`, from the greater of both on: one that stands where the log begins may have had others before."""
    if marked < start and found <= start:
        raise PositionRefused(
            f"{table.full_name}: what was committed right after {lsn_text(at.lsn)} is not in the log any more; give a "
            "later position, or `beginning` and have the table copied again")
