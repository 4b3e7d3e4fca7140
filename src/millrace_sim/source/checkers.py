"""What must hold, judged from outside: the WAL is the truth, the log and the rebuilt tables are measured against it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from millrace.core.sources.reader import NO_FLAWS, P, fold_marks
from millrace.model.progress import Mark
from millrace_sim.checkers import Violation
from millrace_sim.source.database import PARTS, TABLES, Transaction, decoded, partitions_of
from millrace_sim.source.log import PROGRESS, Batch, Row

if TYPE_CHECKING:
    from millrace_sim.source.world import World

EVERYTHING = 1 << 60


def truth(world: World, generation: int, upto: int) -> dict[P, list[Row]]:
    """What the log must hold for this generation, commits <= `upto`."""
    found: dict[P, list[Row]] = {p: [] for p in PARTS}
    start = world.start_of[generation]
    for lsn, record in enumerate(world.db.wal[start : upto + 1], start):
        if isinstance(record, Transaction):
            for oid, seq, change in decoded(record.arrivals, streamed=False, flaws=NO_FLAWS):
                for p in partitions_of(oid, change):
                    found[p].append(Row(lsn, seq, change))
    return found


def rows_by_generation(world: World, p: P, end: int | None = None) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for record in world.log[p].records[:end]:
        if isinstance(record, Batch):
            found.setdefault(record.generation, []).extend(record.rows)
    return found


def check_mark(world: World, mark: Mark) -> None:
    """At its append: everything it claims stands below the ends that it, or a mark before it, names."""
    if mark.timeline != world.db.timeline or mark.generation != world.store.state.generation:
        return
    folded = fold_marks(record for record in world.log[PROGRESS].records if isinstance(record, Mark))
    assert folded is not None
    for p, want in truth(world, mark.generation, mark.resolved).items():
        end = folded.ends.get(p, 0)
        rows = rows_by_generation(world, p, end).get(mark.generation, [])
        have = {(row.lsn, row.change) for row in rows}
        lost = [row.place for row in want if (row.lsn, row.change) not in have]
        if lost:
            raise Violation(f"mark: {mark.resolved} claims {tuple(lost[0])} below offset {end} of {p}")


def check_log(world: World) -> None:
    """Each change once per partition, in order."""
    for p in PARTS:
        for rows in rows_by_generation(world, p).values():
            places = [row[:2] for row in rows]
            if any(a >= b for a, b in pairwise(places)):
                raise Violation(f"log: doubled or out of order in {p}")


def check_end(world: World) -> None:
    check_log(world)
    generation, db = world.store.state.generation, world.db
    for p, want in truth(world, generation, EVERYTHING).items():
        have = rows_by_generation(world, p).get(generation, [])
        if [(row.lsn, row.change) for row in want] != [(row.lsn, row.change) for row in have]:
            raise Violation(f"log: lost or too much in {p}: {len(want)} expected, {len(have)} found")
    if db.slot is None or db.slot.confirmed < len(db.wal) - 1:
        raise Violation(f"idle: the slot stays at {db.slot} of {len(db.wal)}")
    for feed in world.feeds:
        for oid in TABLES:
            rows, real = feed.rows(oid), db.rows[oid]
            wrong = {k: (real.get(k), rows.get(k)) for k in {*real, *rows} if real.get(k) != rows.get(k)}
            if wrong:
                raise Violation(f"table: {feed.name}, table {oid}: (expected, found) by key: {wrong}")
