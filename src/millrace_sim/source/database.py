"""The database: a WAL whose index is the LSN, rows by WAL order, and rows as snapshots see them.

A commit record stands in the WAL before its transaction is visible: `late` holds those in between. Backups and
restores make timelines; a restore cuts the WAL.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from millrace.core.sources.reader import ServerFacts, SlotFacts
from millrace.core.sources.windows import Op
from millrace.model.tables import Lsn, Oid

TABLES: dict[Oid, int] = {1: 2, 2: 1}  # table -> partitions
PARTS = [(oid, i) for oid, k in TABLES.items() for i in range(k)]
KEYS = range(6)
SYSTEM_ID = "7000000000000000001"

Stored = tuple[int, str]          # the small column and the one that an update may leave unsent
Rows = dict[Oid, dict[int, Stored]]


class Change(NamedTuple):
    op: Op | Literal["truncate"]
    key: int
    value: int
    big: str | None               # None: not sent, or a delete
    old_key: int | None = None    # the second half of a key update names it


class Arrival(NamedTuple):
    oid: Oid
    change: Change
    aborted: bool                 # its savepoint was rolled back


class Transaction(NamedTuple):
    arrivals: tuple[Arrival, ...]


class Message(NamedTuple):
    """A low or high mark of a chunk."""

    kind: str
    generation: int
    copy: int
    chunk: int
    attempt: int


@dataclass(slots=True)
class Slot:
    confirmed: Lsn
    active: int = 0               # epoch of the reader that streams from it


class Backup(NamedTuple):
    at: Lsn
    rows: Rows
    timeline: int
    history: tuple[tuple[int, Lsn], ...]


class Late(NamedTuple):
    """Committed in the WAL and not yet visible; its rows stay locked."""

    number: int
    keys: frozenset[tuple[Oid, int]]


def partition_of(oid: Oid, key: int) -> tuple[Oid, int]:
    return oid, key % TABLES[oid]


def partitions_of(oid: Oid, change: Change) -> list[tuple[Oid, int]]:
    """A truncation stands in every partition of its table."""
    return [partition_of(oid, change.key)] if change.op != "truncate" else [(oid, i) for i in range(TABLES[oid])]


def _keys(arrival: Arrival) -> list[tuple[Oid, int]]:
    keys = KEYS if arrival.change.op == "truncate" else [arrival.change.key]
    return [(arrival.oid, key) for key in keys]


def copy_rows(rows: Rows) -> Rows:
    return {oid: dict(table) for oid, table in rows.items()}


def decoded(
    arrivals: tuple[Arrival, ...], *, streamed: bool, flaws: frozenset[str]
) -> Iterator[tuple[Oid, int, Change]]:
    """(table, seq, change) of a committed transaction; streamed blocks also carry what was rolled back later."""
    seq: Counter[Oid] = Counter()
    for oid, change, aborted in arrivals:
        if aborted and not (streamed and "spool" in flaws):
            if streamed and "seq_surviving" in flaws:
                seq[oid] += 1
            continue
        if change.op == "insert" and change.old_key is not None and "h_key_seq" in flaws:
            seq[oid] -= 1
        yield oid, seq[oid], change
        seq[oid] += 1


class Database:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.wal: list[Transaction | Message | None] = []  # None: of no interest to us
        self.rows: Rows = {oid: {} for oid in TABLES}
        self.visible: Rows = {oid: {} for oid in TABLES}
        self.late: list[Late] = []
        self.timeline, self.timelines = 1, 1
        self.history: tuple[tuple[int, Lsn], ...] = ()
        self.slot: Slot | None = None
        self.backups: list[Backup] = []
        self.standby: deque[Backup] = deque(maxlen=3)  # what a standby that lags a little may have
        self.serial = 0

    # -- what a reader asks
    def server(self) -> ServerFacts:
        return ServerFacts(SYSTEM_ID, self.timeline, self.history)

    def slot_facts(self) -> SlotFacts | None:
        return None if self.slot is None else SlotFacts(self.slot.confirmed)

    # -- the application
    def transaction(self, *, calm: bool) -> None:
        rng = self.rng
        locked = {key for late in self.late for key in late.keys}
        rows, arrivals = copy_rows(self.rows), []
        tables = [rng.choice(list(TABLES))] if rng.random() < 0.7 else list(TABLES)
        for savepoint in range(rng.choice((1, 1, 1, 2, 4))):
            aborted, before = savepoint > 0 and rng.random() < 0.4, copy_rows(rows)
            for _ in range(rng.randint(1, 4)):
                oid = rng.choice(tables)
                free = [key for key in KEYS if (oid, key) not in locked]
                if free:
                    arrivals += [Arrival(oid, change, aborted) for change in self._statement(rows[oid], free)]
            if aborted:
                rows = before
        if rng.random() < 0.1:
            self.wal.append(None)  # rolled back as a whole
            return
        self.standby.append(self._state())
        self.wal.append(Transaction(tuple(arrivals)))
        self.rows = rows
        self.serial += 1
        late = Late(self.serial, frozenset(key for a in arrivals if not a.aborted for key in _keys(a)))
        if rng.random() < 0.4 and not calm:
            self.late.append(late)
        else:
            self._show(late)

    def _statement(self, rows: dict[int, Stored], free: list[int]) -> list[Change]:
        rng, key = self.rng, self.rng.choice(free)
        self.serial += 1
        if len(free) == len(KEYS) and rng.random() < 0.03:  # it takes a lock that no writer leaves
            rows.clear()
            return [Change("truncate", -1, self.serial, None)]
        new = self.serial, f"B{self.serial}"
        if key not in rows:
            rows[key] = new
            return [Change("insert", key, *new)]
        dice = rng.random()
        if dice < 0.2:
            del rows[key]
            return [Change("delete", key, self.serial, None)]
        to = [k for k in free if k not in rows]
        kept = rows[key][1] if rng.random() < 0.65 else None
        sent = None if kept is not None else new[1]
        if dice < 0.45 and to:
            del rows[key]
            other = rng.choice(to)
            rows[other] = (self.serial, kept or new[1])
            return [Change("delete", key, self.serial, None), Change("insert", other, self.serial, sent, key)]
        rows[key] = (self.serial, kept or new[1])
        return [Change("update", key, self.serial, sent)]

    def show_one(self) -> None:
        self._show(self.late.pop(self.rng.randrange(len(self.late))))

    def _show(self, late: Late) -> None:
        for oid, key in late.keys:
            if key in self.rows[oid]:
                self.visible[oid][key] = self.rows[oid][key]
            else:
                self.visible[oid].pop(key, None)

    def noise(self) -> None:
        """Another database writes."""
        self.wal.append(None)

    # -- faults
    def _state(self) -> Backup:
        return Backup(len(self.wal), copy_rows(self.rows), self.timeline, self.history)

    def backup(self) -> None:
        self.backups.append(self._state())

    def restore(self) -> None:
        self._go_back(self.backups.pop(), slot_kept=0.5)

    def promote(self) -> None:
        """A standby takes over; it may lack the last commits, and mostly it has our slot."""
        self.standby.append(self._state())
        self._go_back(self.rng.choice(list(self.standby)), slot_kept=0.9)

    def _go_back(self, back: Backup, *, slot_kept: float) -> None:
        del self.wal[back.at :]
        self.backups = [other for other in self.backups if other.at <= back.at]
        self.rows, self.visible, self.late = copy_rows(back.rows), copy_rows(back.rows), []
        self.history = (*back.history, (back.timeline, back.at))
        self.timelines += 1
        self.timeline = self.timelines
        self.standby.clear()
        if self.slot is not None:
            kept = self.rng.random() < slot_kept
            self.slot = Slot(min(self.slot.confirmed, back.at)) if kept else None

    def lose_slot(self) -> None:
        self.slot = None
