"""A changefeed's dispatchers and the tables rebuilt from what they emit; around the product's `Windows` and `Rebuilt`.

One kind merges all partitions at marks (a lake), the other reads its partitions freely (Kafka). State and positions
are saved together; a crash goes back to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.core.sources.reader import Folded, P, fold
from millrace.core.sources.windows import Changed, Op, Rank, Rebuilt, Window, Windows, changed_after
from millrace.core.sources.windows import Key as RowKey
from millrace.errors import OutOfOrder
from millrace.model.progress import Mark
from millrace.model.sources import ChunkSpan
from millrace.model.tables import Lsn, Oid
from millrace_sim.checkers import Violation
from millrace_sim.source.copier import keys_of
from millrace_sim.source.database import PARTS, TABLES, Change, partition_of
from millrace_sim.source.log import PROGRESS, Batch

if TYPE_CHECKING:
    from millrace_sim.source.world import World

BIG = frozenset({"big"})


@dataclass(slots=True)
class State:
    windows: Windows
    tables: dict[Oid, Rebuilt]
    positions: dict[P, int] = field(default_factory=lambda: dict.fromkeys((*PARTS, PROGRESS), 0))
    ahead: int = 0               # up to where `windows` has read `progress`
    mark: Folded | None = None

    @property
    def generation(self) -> int:
        return self.mark.generation if self.mark else 0

    @property
    def resolved(self) -> Lsn:
        return self.mark.resolved if self.mark else -1

    def clone(self) -> State:
        tables = {oid: table.clone() for oid, table in self.tables.items()}
        return State(self.windows.clone(), tables, dict(self.positions), self.ahead, self.mark)


class Feed:
    def __init__(self, world: World, name: str, *, merges: bool) -> None:
        self.world, self.name, self.merges = world, name, merges
        self.state = State(Windows(name, world.flaws), {oid: Rebuilt(world.flaws) for oid in TABLES})
        self.saved = self.state.clone()

    def crash(self) -> None:
        self.state = self.saved.clone()

    def save(self) -> None:
        self.saved = self.state.clone()

    def rows(self, oid: Oid) -> dict[int, tuple[object, object]]:
        values = self.state.tables[oid].values()
        return {int(str(key[0])): (row["value"], row.get("big", "?")) for key, row in values.items()}

    # -- progress
    def follow(self) -> None:
        """One record of `progress`."""
        state, progress = self.state, self.world.log[PROGRESS]
        at = state.positions[PROGRESS]
        if at >= progress.hw:
            return
        self._look_ahead(self.world.rng.randint(at + 1, progress.hw))
        ((_, record),) = progress.read(at, at + 1)
        if isinstance(record, Mark) and not self._mark(record):
            return
        state.positions[PROGRESS] = at + 1

    def _look_ahead(self, end: int) -> None:
        state = self.state
        for _, record in self.world.log[PROGRESS].read(state.ahead, end) if state.ahead < end else ():
            if not isinstance(record, (Batch, tuple)):
                state.windows.replay(record)
        state.ahead = max(state.ahead, end)

    def _mark(self, mark: Mark) -> bool:
        """False: it waits for the initial copy."""
        state = self.state
        if mark.generation > state.generation:
            self._look_ahead(self.world.log[PROGRESS].hw)
            if state.windows.pending(mark.generation):
                return False
            folded = fold(None, mark)
            self._advance(folded)  # the rest of the old generation
            state.mark = folded
            for window in state.windows.initial(mark.generation):
                self._put(window, Changed(window.low))
        elif mark.generation == state.generation:
            state.mark = fold(state.mark, mark)
            self._advance(state.mark)
            for window in state.windows.ready(mark.generation, mark.resolved):
                self._put(window, self._changed(window))
        return True

    # -- changes
    def _advance(self, mark: Folded) -> None:
        """Every partition up to its end in the mark, in the order of everything."""
        state = self.state
        found: list[tuple[Rank, P, Change]] = []
        for p in PARTS:
            end = mark.ends.get(p, 0)
            for offset, record in self._read(p, end):
                if isinstance(record, Batch):
                    found += [(Rank(record.generation, row.lsn, row.seq), p, row.change) for row in record.rows]
                state.positions[p] = offset + 1
        for rank, p, change in sorted(found, key=lambda entry: entry[0]):
            self._apply(rank, p, change)

    def _read(self, p: P, end: int) -> list[tuple[int, object]]:
        start = self.state.positions[p]
        return list(self.world.log[p].read(start, end)) if start < end else []

    def read_on(self, p: P) -> None:
        """Marks or not, within its generation."""
        state, partition = self.state, self.world.log[p]
        for offset, record in self._read(p, min(state.positions[p] + 1, partition.hw)):
            if isinstance(record, Batch):
                if record.generation > state.generation:
                    return
                for row in record.rows:
                    self._apply(Rank(record.generation, row.lsn, row.seq), p, row.change)
            state.positions[p] = offset + 1

    def _apply(self, rank: Rank, p: P, change: Change) -> None:
        oid, table, key = p[0], self.state.tables[p[0]], (change.key,)
        row = {"value": change.value} if change.big is None else {"value": change.value, "big": change.big}
        unchanged = BIG if change.big is None else frozenset[str]()
        try:
            if change.op == "delete":
                table.delete(rank, key)
            elif change.op == "truncate":
                table.truncate(rank, mine=lambda key: partition_of(oid, int(str(key[0]))) == p)
            elif change.op == "update":
                table.update(rank, key, row, unchanged=unchanged)
            else:
                old_key = None if change.old_key is None else (change.old_key,)
                table.insert(rank, key, row, unchanged=unchanged, old_key=old_key)
        except OutOfOrder as error:
            raise Violation(f"order: {self.name}, table {oid}: {error}") from error

    # -- copies
    def _changed(self, window: Window) -> Changed:
        truncated: list[Lsn] = []
        changed = changed_after(window, self._changes(window, truncated), flaws=self.world.flaws)
        for lsn in truncated:
            changed.truncate(lsn)
        return changed

    def _changes(self, window: Window, truncated: list[Lsn]) -> Iterator[tuple[Lsn, Op, RowKey]]:
        """Of the table, from the copy's floor to where this consumer stands."""
        floors = self.world.floors[window.attempt.copy]
        for p in PARTS:
            if p[0] != window.oid:
                continue
            for _, record in self.world.log[p].read(floors[p], self.state.positions[p]):
                if isinstance(record, Batch) and record.generation == window.manifest.generation:
                    for row in record.rows:
                        if row.change.op == "truncate":
                            truncated.append(row.lsn)
                        else:
                            yield row.lsn, row.change.op, (row.change.key,)

    def _put(self, window: Window, changed: Changed) -> None:
        state, table = self.state, self.state.tables[window.oid]
        manifest = window.manifest
        keys = {(k,) for k in keys_of(ChunkSpan(0, low_key=manifest.low_key, high_key=manifest.high_key))}
        covers = keys.__contains__ if self.world.keyed else None
        try:
            table.chunk(window, self._rows(window), changed, covers=covers)
        except OutOfOrder as error:
            raise Violation(f"order: {self.name}, table {window.oid}: {error}") from error
        if sweep := state.windows.used(window):
            table.sweep(sweep.below)

    def _rows(self, window: Window) -> dict[RowKey, dict[str, object]]:
        flaws = self.world.flaws
        found: dict[RowKey, dict[str, object]] = {}
        for partition in range(TABLES[window.oid]):
            topic = self.world.copy_topics.get((window.attempt.copy, partition), [])
            ranges = [(r.start, r.end) for r in window.manifest.ranges if r.partition == partition]
            for start, end in [(0, len(topic))] if "manifest" in flaws else ranges:
                for chunk, attempt, key, (value, big) in topic[start:end]:
                    mixed = chunk == window.attempt.chunk and ("h_attempt" in flaws or "manifest" in flaws)
                    if mixed or window.counts(chunk=chunk, attempt=attempt):
                        found[(key,)] = {"value": value, "big": big}
        return found

    # -- rows that cannot be completed
    def ask(self) -> None:
        """They are read again by key."""
        state, store = self.state, self.world.store.state
        if state.generation != store.generation:
            return
        for oid, table in state.tables.items():
            missing = sorted(int(str(key[0])) for key in table.incomplete())
            copies = store.copies.of_generation(state.generation)
            if missing and not any(copy.oid == oid and self.waits_for(copy.id) for copy in copies):
                chunks = tuple(ChunkSpan(0, low_key=(str(k),), high_key=(str(k),), by_key=True) for k in missing)
                self.world.plan(oid, (self.name,), chunks)

    def waits_for(self, copy: int) -> bool:
        return self.world.waits_for(self.name, self.state, copy)
