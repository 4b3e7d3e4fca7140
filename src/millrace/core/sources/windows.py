"""The consumer's side of copies: which chunk rows count, and a table rebuilt from changes and chunks [S4, S5, F11].

    progress ──▶ Windows.replay ──▶ pending / initial / ready ──▶ Window (one attempt, its manifest, its low mark)
    table's partitions ──▶ Changed (keys changed after the low mark, up to where the consumer stands)
    Window + its rows + Changed ──▶ Rebuilt.chunk ──▶ rows put, rows deleted, rows completed
    all chunks of a copy used ──▶ Sweep ──▶ Rebuilt.sweep: what no chunk holds and no change touched since is deleted
    a table without a key: Window + its rows + changes its snapshot has not seen ──▶ whole.py

A consumer goes, per source: read `progress`; at the first mark of a generation wait until nothing is `pending`, read
the partitions up to the mark's ends, put the `initial` chunks, then go on. At each later mark: read the partitions up
to its ends at least (never less: a batch may reach over a high mark), then put the windows that are `ready`.
`Windows` may run ahead of the marks in `progress`.
Promise: a chunk row never overwrites a later change, an attempt never mixes with another, a value that was not sent is
never invented: the row says which columns it is missing and is read again by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from millrace.core.sources.copies import Attempt, ChunkId
from millrace.core.sources.reader import NO_FLAWS, SEQ_MAX
from millrace.errors import OutOfOrder
from millrace.model.progress import (
    ChunksAbandoned,
    CopyStarted,
    HighMark,
    LowMark,
    Manifest,
    ProgressRecord,
)
from millrace.model.tables import Lsn, Oid

Key = tuple[object, ...]
Row = Mapping[str, object]
Op = Literal["insert", "update", "delete"]

FLAWS = {
    "supersede": "a chunk overwrites keys that changed since its low mark",
    "unchanged": "an unchanged column is taken for null",
    "toast_chunk": "a row is not completed from its chunk (costs a read, breaks nothing)",
    "h_attempt": "low marks and manifests are matched by chunk, whatever the attempt",
    "h_to_position": "only keys changed between the marks are left out",
    "h_chain": "a chunk row completes whatever now has its key",
    "h_key_fill": "the second half of a key update is never completed from the first (costs a read, breaks nothing)",
    "h_fill_gen": "a row of an earlier generation completes one of this",
    "h_replace": "rows that a copy does not hold stay",
    "h_truncate": "a truncation since the low mark leaves chunk rows alone",
    "h_wait": "a consumer waits for chunks whose snapshot was lost",
}


class Rank(NamedTuple):
    """The order of everything about one key [F11]. A chunk row ranks at its low mark, behind all changes there."""

    generation: int
    commit_lsn: Lsn
    seq: int


# -- what `progress` says about copies -------------------------------------------------------------------------------
class Window(NamedTuple):
    """One attempt at one chunk that counts. Of its topic count the records in `manifest.ranges` that name it."""

    attempt: Attempt
    oid: Oid
    low: Lsn
    high: Lsn
    manifest: Manifest

    @property
    def rank(self) -> Rank:
        return Rank(self.manifest.generation, self.low, SEQ_MAX)

    def counts(self, *, chunk: int, attempt: int) -> bool:
        """Whether a record of the copy's topic that names these belongs to this window: attempts interleave."""
        return (chunk, attempt) == self.attempt[1:]


class Sweep(NamedTuple):
    """Every chunk of a copy of the whole table was put: rows of `oid` that rank below are gone from the source."""

    oid: Oid
    below: Rank


@dataclass(slots=True)
class Windows:
    """Folds the copy records of `progress` for one changefeed; `feed` "": whatever they are addressed to."""

    feed: str = ""
    flaws: frozenset[str] = NO_FLAWS
    newest: int = 0  # generation
    copies: dict[int, CopyStarted] = field(default_factory=dict)
    _manifests: dict[Attempt, Manifest] = field(default_factory=dict)
    _lows: dict[Attempt, Lsn] = field(default_factory=dict)
    _highs: dict[Attempt, Lsn] = field(default_factory=dict)
    _abandoned: set[ChunkId] = field(default_factory=set)
    _used: dict[int, dict[int, Lsn]] = field(default_factory=dict)  # copy -> chunk -> low mark of what was put
    _put: set[Attempt] = field(default_factory=set)

    def replay(self, record: ProgressRecord) -> None:
        """Every record of `progress`, in order; one that was sent again changes nothing."""
        if record.generation < self.newest:
            return
        if record.generation > self.newest:
            self._forget(record.generation)
        match record:
            case CopyStarted() if not record.feeds or not self.feed or self.feed in record.feeds:
                self.copies[record.copy] = record
            case ChunksAbandoned() if "h_wait" not in self.flaws:
                self._abandoned |= {ChunkId(record.copy, chunk) for chunk in record.chunks}
            case Manifest():
                if record.kind == "watermark" or ChunkId(record.copy, record.chunk) not in self._abandoned:
                    self._manifests.setdefault(self._named(record), record)
            case LowMark():
                if "h_attempt" in self.flaws:
                    self._lows.pop(self._named(record), None)
                self._lows.setdefault(self._named(record), record.lsn)
            case HighMark():
                self._highs.setdefault(self._named(record), record.lsn)
            case _:
                pass

    def _forget(self, generation: int) -> None:
        """Nothing more comes for copies of an earlier generation: those of the new one replace all they brought."""
        self.newest = generation
        self.copies = {}
        self._manifests, self._lows, self._highs = {}, {}, {}
        self._abandoned, self._used, self._put = set(), {}, set()

    def _named(self, record: LowMark | HighMark | Manifest) -> Attempt:
        attempt = 0 if "h_attempt" in self.flaws else record.attempt
        return Attempt(record.copy, record.chunk, attempt)

    def clone(self) -> Windows:
        """For a checkpoint: what either goes on to learn is not seen by the other."""
        return Windows(
            self.feed, self.flaws, self.newest, dict(self.copies), dict(self._manifests), dict(self._lows),
            dict(self._highs), set(self._abandoned), {copy: dict(used) for copy, used in self._used.items()},
            set(self._put),
        )

    # -- snapshots
    def pending(self, generation: int) -> tuple[ChunkId, ...]:
        """Snapshot chunks that can still come: the first change of the generation waits for them."""
        if generation != self.newest:
            return ()
        have = {ChunkId(*attempt[:2]) for attempt, m in self._manifests.items() if m.kind == "snapshot"}
        wanted = (ChunkId(c.copy, n) for c in self.copies.values() if c.kind == "snapshot" for n in range(c.chunks))
        return tuple(chunk for chunk in wanted if chunk not in have and chunk not in self._abandoned)

    def initial(self, generation: int) -> list[Window]:
        """Snapshot chunks to put before the first change of the generation; one attempt of each, any is right."""
        found: dict[ChunkId, Window] = {}
        for attempt, manifest in sorted(self._manifests.items()):
            copy = self.copies.get(attempt.copy)
            if copy is None or manifest.kind != "snapshot" or generation != self.newest or attempt in self._put:
                continue
            named = Attempt(attempt.copy, attempt.chunk, manifest.attempt)
            low = copy.at - 1
            found.setdefault(ChunkId(*attempt[:2]), Window(named, manifest.oid, low, low, manifest))
        return list(found.values())

    # -- windows
    def ready(self, generation: int, resolved: Lsn) -> list[Window]:
        """Windows that close at or below a mark of this generation, in the order of their high marks."""
        if generation != self.newest:
            return []
        found = []
        for attempt, high in self._highs.items():
            manifest, low = self._manifests.get(attempt), self._lows.get(attempt)
            if high > resolved or manifest is None or low is None or attempt in self._put:
                continue
            if attempt.copy in self.copies:
                found.append(Window(attempt._replace(attempt=manifest.attempt), manifest.oid, low, high, manifest))
        return sorted(found, key=lambda window: (window.high, window.attempt))

    def used(self, window: Window) -> Sweep | None:
        """Its rows were put. The last chunk of a whole copy says what to sweep."""
        copy = self.copies.get(window.attempt.copy)
        self._put.add(self._named(window.manifest))
        if copy is None:
            return None
        lows = self._used.setdefault(copy.copy, {})
        first = len(lows) < copy.chunks
        lows[window.attempt.chunk] = min(window.low, lows.get(window.attempt.chunk, window.low))
        if not first or len(lows) < copy.chunks or not copy.whole:
            return None
        # A copy that began as a snapshot makes good for what was before it. Its windows keep the places of that plan,
        # so rows of a partition attached since are in none of them; they came by the stream, complete from `at` on.
        low = copy.at - 1 if copy.kind == "snapshot" else min(lows.values())  # snapshot rows rank at `at` - 1
        return Sweep(window.oid, Rank(window.manifest.generation, low, -1))

    def open_lows(self) -> dict[Oid, Lsn]:
        """Per table the lowest low mark that is not yet used: the log is held from there on [F10]."""
        lows: dict[Oid, Lsn] = {}
        for attempt, low in self._lows.items():
            copy = self.copies.get(attempt.copy)
            if copy is not None and attempt.chunk not in self._used.get(copy.copy, {}):
                lows[copy.oid] = min(low, lows.get(copy.oid, low))
        return lows


# -- the keys that a chunk must leave alone --------------------------------------------------------------------------
@dataclass(slots=True)
class Changed:
    """Changes of one table in one generation after a low mark, read from the log up to where the consumer stands.

    It is read again from the partitions at every window, never only remembered: a consumer that came back has
    forgotten what its predecessor saw.
    """

    low: Lsn
    keys: set[Key] = field(default_factory=set)
    broken: set[Key] = field(default_factory=set)  # not only updates of the same key: the chunk's row may be another
    truncated: bool = False

    def add(self, commit_lsn: Lsn, op: Op, key: Key) -> None:
        if commit_lsn > self.low:
            self.keys.add(key)
            if op != "update":
                self.broken.add(key)

    def truncate(self, commit_lsn: Lsn) -> None:
        """Takes every key there was: all of the chunk may be older."""
        self.truncated = self.truncated or commit_lsn > self.low

    def __contains__(self, key: Key) -> bool:
        return self.truncated or key in self.keys


def changed_after(
    window: Window, changes: Iterable[tuple[Lsn, Op, Key]], *, flaws: frozenset[str] = NO_FLAWS
) -> Changed:
    """From the changes of the table's partitions in the window's generation, as far as the consumer has read them."""
    changed = Changed(window.low)
    for commit_lsn, op, key in changes:
        if commit_lsn <= window.high or "h_to_position" not in flaws:
            changed.add(commit_lsn, op, key)
    if "supersede" in flaws:
        changed.keys.clear()
    return changed


# -- a table, rebuilt ------------------------------------------------------------------------------------------------
class Held(NamedTuple):
    """A row as far as it is known; `missing`: columns whose value was not sent and is known from nowhere."""

    values: Row
    missing: frozenset[str]
    rank: Rank


class Emitted(NamedTuple):
    """What a chunk did: rows put, keys deleted, rows whose missing columns it knew."""

    put: tuple[Key, ...]
    deleted: tuple[Key, ...]
    completed: tuple[Key, ...]


_NOTHING: frozenset[str] = frozenset()


@dataclass(slots=True)
class Rebuilt:
    """One table as a consumer holds it. Refuses what comes out of order: that would be a defect of ours."""

    flaws: frozenset[str] = NO_FLAWS
    rows: dict[Key, Held] = field(default_factory=dict)
    ranks: dict[Key, Rank] = field(default_factory=dict)      # of the last thing that came for a key, deleted or not
    _left: dict[Key, Held] = field(default_factory=dict)      # deleted by the change at `_left_at`'s commit, by key
    _left_at: dict[Key, Rank] = field(default_factory=dict)

    def clone(self) -> Rebuilt:
        """For a checkpoint."""
        return Rebuilt(self.flaws, dict(self.rows), dict(self.ranks), dict(self._left), dict(self._left_at))

    def values(self) -> dict[Key, Row]:
        return {key: held.values for key, held in self.rows.items()}

    def incomplete(self) -> dict[Key, frozenset[str]]:
        """Rows to be read again by key, and what they are missing."""
        return {key: held.missing for key, held in self.rows.items() if held.missing}

    # -- changes
    def insert(self, rank: Rank, key: Key, row: Row, *, unchanged: frozenset[str] = _NOTHING,
               old_key: Key | None = None) -> None:
        """`old_key`: the second half of a key update; its unchanged columns are those of the row that had that key."""
        self._in_order(rank, key)
        donor = self._moved(rank, old_key)
        if donor is None and "h_chain" in self.flaws:
            donor = self.rows.get(key)
        self._put(rank, key, row, unchanged, donor)

    def update(self, rank: Rank, key: Key, row: Row, *, unchanged: frozenset[str] = _NOTHING) -> None:
        self._in_order(rank, key)
        self._put(rank, key, row, unchanged, self.rows.get(key))

    def delete(self, rank: Rank, key: Key) -> None:
        self._in_order(rank, key)
        held = self.rows.pop(key, None)
        if any(at[:2] != rank[:2] for at in self._left_at.values()):
            self._left, self._left_at = {}, {}
        if held is not None:
            self._left[key], self._left_at[key] = held, rank

    def truncate(self, rank: Rank, *, mine: Callable[[Key], bool] | None = None) -> None:
        """`mine`: the keys of the partition whose marker this is; None: all."""
        for key in [k for k, held in self.rows.items() if held.rank < rank and (mine is None or mine(k))]:
            del self.rows[key]
            self.ranks[key] = rank

    def _in_order(self, rank: Rank, key: Key) -> None:
        last = self.ranks.get(key)
        if last is not None and rank <= last:
            raise OutOfOrder(f"key {key}: change {tuple(rank)} after {tuple(last)}")
        self.ranks[key] = rank

    def _moved(self, rank: Rank, old_key: Key | None) -> Held | None:
        """The first half stands right before the second, in the same commit."""
        if old_key is None or "h_key_fill" in self.flaws or old_key not in self._left:
            return None
        return self._left[old_key] if self._left_at[old_key] == rank._replace(seq=rank.seq - 1) else None

    def _put(self, rank: Rank, key: Key, row: Row, unchanged: frozenset[str], donor: Held | None) -> None:
        if not unchanged:
            self.rows[key] = Held(row, _NOTHING, rank)
            return
        if "unchanged" in self.flaws:
            self.rows[key] = Held({**row, **dict.fromkeys(unchanged)}, _NOTHING, rank)
            return
        if donor is not None and donor.rank.generation != rank.generation and "h_fill_gen" not in self.flaws:
            donor = None
        have = {} if donor is None else {c: donor.values[c] for c in unchanged - donor.missing if c in donor.values}
        self.rows[key] = Held({**row, **have}, unchanged - have.keys(), rank)

    # -- copies
    def chunk(
        self, window: Window, rows: Mapping[Key, Row], changed: Changed, *, covers: Callable[[Key], bool] | None = None
    ) -> Emitted:
        """Put a chunk, the consumer standing where `changed` ends.

        `covers`: whether a key lies in the chunk's range, where that can be told from the key: then what the chunk does
        not hold is deleted here. Where it cannot (ranges by place), `sweep` does it at the end of the copy.
        """
        if "h_truncate" in self.flaws:
            changed = Changed(changed.low, changed.keys, changed.broken)
        put = tuple(key for key in rows if key not in changed)
        for key in put:
            last = self.ranks.get(key, window.rank)
            if window.rank < last and last.seq != SEQ_MAX and "h_to_position" not in self.flaws:
                raise OutOfOrder(f"key {key}: copy row {tuple(window.rank)} after change {tuple(last)}")
            held = self.rows.get(key)  # copies may overlap: the later low mark stays, or its sweep takes the row
            rank = window.rank if held is None else max(window.rank, held.rank)
            self.rows[key] = Held(rows[key], _NOTHING, rank)
            self.ranks[key] = max(rank, last)  # older changes must have been read before
        gone: tuple[Key, ...] = ()
        if covers is not None and "h_replace" not in self.flaws:
            gone = tuple(key for key in self.rows if key not in rows and key not in changed and covers(key))
            for key in gone:
                del self.rows[key]
        completed = tuple(key for key in rows if key in changed and self._complete(key, rows[key], changed))
        return Emitted(put, gone, completed)

    def _complete(self, key: Key, row: Row, changed: Changed) -> bool:
        """The chunk's row is the one that was updated only if nothing but updates happened to its key since."""
        held = self.rows.get(key)
        if held is None or not held.missing or changed.truncated or "toast_chunk" in self.flaws:
            return False
        if key in changed.broken and "h_chain" not in self.flaws:
            return False
        known = {column: row[column] for column in held.missing if column in row}
        self.rows[key] = Held({**held.values, **known}, held.missing - known.keys(), held.rank)
        return bool(known)

    def sweep(self, below: Rank) -> tuple[Key, ...]:
        """What no chunk of the copy held and no change touched since its first low mark."""
        if "h_replace" in self.flaws:
            return ()
        gone = tuple(key for key, held in self.rows.items() if held.rank < below)
        for key in gone:
            del self.rows[key]
        return gone
