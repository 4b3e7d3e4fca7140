"""One changefeed's data: log with schema changes, home of positions, target; and the checkers of what takes effect.

LSNs are whole numbers that become available with time. A partition's record is (lsn, number of the change whose marker
it is, or None: a row). The target holds, per partition, how many records were written, and per table its changes; where
positions are made anew, by a rewind or since a table left, it begins anew with them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from millrace.core.feeds.barrier import SchemaChange, passes
from millrace.core.feeds.checkpoint import Committed
from millrace.model.changefeeds import (
    LEFT,
    CheckpointReached,
    DdlPosition,
    EpochsTaken,
    FeedRecords,
    FeedRewound,
    SpanEnded,
    SpanPlaced,
    SpanRecorded,
    SpansReplaced,
    SpecSettled,
    TableEnds,
    TableNeedsCopy,
)
from millrace.model.spans import Span, SpanId, TableId, TablePartition
from millrace_sim.checkers import Violation
from millrace_sim.control.keeping import Keeping
from millrace_sim.control.rules import SOURCE, FeedRules

ROUND_RECORDS = 4
Row = tuple[int, int | None]


class FeedData:
    def __init__(self, feed: str, rng: random.Random, lsns: int, flaws: frozenset[str]) -> None:
        self.feed, self.flaws, self.rules = feed, flaws, FeedRules(feed)
        self.available = 0                                       # LSN up to which the source has written
        self.tables = {TableId(SOURCE, 1): rng.choice((2, 3)), TableId(SOURCE, 2): 1, TableId(SOURCE, 3): 1}
        self.first_tables = dict(self.tables)
        self.log: dict[TablePartition, list[Row]] = {}
        self.changes: list[SchemaChange] = []
        self.born = dict.fromkeys(self.tables, -1)
        self.died: dict[TableId, int] = {}
        for table, partitions in self.tables.items():
            self._add(table, partitions)
        for lsn in range(1, lsns):
            self._write_source(lsn, rng)
        self.epochs = dict.fromkeys(self.log, 0)
        self.next = dict.fromkeys(self.log, 0)                   # committed
        self.resolved = dict.fromkeys(self.log, 0)
        self.ddl = DdlPosition()
        self.ddl_fence = 0
        self.fence = dict.fromkeys(self.log, 0)
        self.written = dict.fromkeys(self.log, 0)                # in the target
        self.applied: dict[TableId, list[int]] = {table: [] for table in self.tables}
        self.checkpoint = 0
        self.closed = False                                      # the changefeed was removed
        self.users: dict[int, object] = {}
        self.spans: dict[SpanId, Span] = {}                      # as recorded
        self.left: set[TableId] = set()                          # recorded as leaving, or gone so
        self.made = dict.fromkeys(self.log, 0)                   # under which epoch a position was made
        self.since = dict.fromkeys(self.tables, 0)               # changes before it passed while the table was out
        self.joined: dict[TableId, int] = {}                     # behind the checkpoint, which was this
        self.missed: set[TableId] = set()                        # dropped while the rules left it out: it cannot join
        self.rewinds = 0
        self.needs: set[TableId] = set()                         # out until they are copied
        self.needed: set[TableId] = set()                        # that ever were
        self.kept = Keeping(self, flaws)
        self._given: set[int] = set()
        self._placed: set[int] = set()

    # -- the source
    def _add(self, table: TableId, partitions: int) -> None:
        for partition in range(partitions):
            self.log[TablePartition(table, partition)] = []

    def _write_source(self, lsn: int, rng: random.Random) -> None:
        alive = [table for table in self.tables if table not in self.died]
        if rng.random() >= 0.16:
            table = rng.choice(alive)
            self.log[TablePartition(table, rng.randrange(self.tables[table]))].append((lsn, None))
            return
        number, kind = len(self.changes), rng.choice(("alter",) * 5 + ("create", "drop"))
        tables = rng.sample(alive, min(len(alive), rng.choice((1, 1, 2, 3))))
        if kind == "drop" and len(alive) > 2:
            tables = tables[:1]
            self.died[tables[0]] = number
        elif kind == "create" and len(self.tables) < 6:
            made = TableId(SOURCE, 100 + lsn)
            self.tables[made], self.born[made] = rng.choice((1, 2)), number
            self._add(made, self.tables[made])
            self.changes.append(SchemaChange(number, lsn, "create", (made,), self.tables[made]))
            return
        else:
            kind = "alter"
        for table in tables:
            for partition in range(self.tables[table]):
                self.log[TablePartition(table, partition)].append((lsn, number))
        change: SchemaChange = SchemaChange(number, lsn, "drop" if kind == "drop" else "alter", tuple(tables))
        self.changes.append(change)

    def known_changes(self) -> list[SchemaChange]:
        return [change for change in self.changes if change.lsn <= self.available]

    def ends(self) -> dict[TablePartition, int]:
        return {part: sum(lsn <= self.available for lsn, _ in rows) for part, rows in self.log.items()}

    # -- the home of positions
    def positions(self, takes: Callable[[TableId], bool] = lambda table: True) -> dict[TablePartition, Committed]:
        """Of tables that are taken, and not over."""
        return {part: self._committed(part) for part in self.log
                if takes(part.table) and not self.is_over(part.table)}

    def is_over(self, table: TableId) -> bool:
        return self.died.get(table, len(self.changes)) < self.ddl.of(table)

    def _committed(self, part: TablePartition) -> Committed:
        at, rows = self.next[part], self.log[part]
        marker = rows[at][1] if at < len(rows) and rows[at][0] <= self.available else None
        return Committed(at, self.resolved[part], marker, made=self.made[part])

    def _resolved_at(self, part: TablePartition, at: int) -> int:
        rows = self.log[part]
        return rows[at][0] - 1 if at < len(rows) and rows[at][0] <= self.available else self.available

    def use_epoch(self, epoch: int, who: object) -> None:
        if self.users.setdefault(epoch, who) != who:
            raise Violation(f"V9 {self.feed}: epoch {epoch} is used by {who} and by {self.users[epoch]}")

    def raise_epoch(self, parts: tuple[TablePartition, ...], epoch: int) -> bool:
        """The compare-and-set of a take-over."""
        if any(self.epochs[part] >= epoch for part in parts):
            return False
        if self.closed:
            raise Violation(f"C3 {self.feed}: taken over after it was removed")
        for part in parts:
            self.epochs[part] = epoch
        return True

    def forget(self, parts: tuple[TablePartition, ...], epoch: int) -> None:
        """Closed and fenced under this epoch; made anew where they begin. Of a table that needs a copy none is made: a
        change of it that was on the way finds the target as it was."""
        for part in parts:
            is_out, before = part.table in self.needs, self.written[part]
            self.make(part, 0, epoch, held=not is_out)
            self.written[part] = before if is_out else 0

    def close(self, part: TablePartition | None, epoch: int) -> bool:
        """Before a rewind; None: the ddl position. Who wrote before is shut out."""
        if (self.ddl.epoch if part is None else self.epochs[part]) >= epoch:
            return False
        fenced = "rewind_unfenced" not in self.flaws
        if part is None:
            self.ddl = DdlPosition(epoch, self.ddl.next, self.ddl.isolated)
            self.ddl_fence = epoch if fenced else self.ddl_fence
        else:
            self.epochs[part] = epoch
            self.fence[part] = max(self.fence[part], epoch) if fenced else self.fence[part]
        return True

    def rewind(self, part: TablePartition | None, lsn: int, number: int, epoch: int) -> bool:
        """Closed under this epoch, made anew behind this LSN, for wish `number`."""
        if (self.ddl.epoch if part is None else self.epochs[part]) != epoch:
            return False
        if number <= self.rewinds:
            raise Violation(f"C4 {self.feed}: rewind {number} was done, and is done again")
        if part is None:
            self._rewind_ddl(lsn, epoch)
        else:
            self.make(part, sum(at <= lsn for at, _ in self.log[part]), epoch, held=False)
        return True

    def make(self, part: TablePartition, at: int, epoch: int, *, held: bool) -> None:
        self.kept.made(part, at, held=held)
        self.next[part] = self.written[part] = at
        self.resolved[part], self.made[part] = self._resolved_at(part, at), epoch

    def _rewind_ddl(self, lsn: int, epoch: int) -> None:
        self.ddl = DdlPosition(epoch, sum(change.lsn <= lsn for change in self.changes))
        for table in self.tables:
            self.applied[table] = [c.number for c in self.changes if c.lsn <= lsn and table in c.tables]
            self.since[table] = 0
        self.missed.clear()

    def commit(self, part: TablePartition, epoch: int, start: int, end: int) -> bool:
        if (self.epochs[part], self.next[part]) != (epoch, start) and "commit_any" not in self.flaws:
            return False
        self.next[part] = end
        self.resolved[part] = self._resolved_at(part, end)
        return True

    def end_of_round(self, part: TablePartition, start: int) -> int:
        """Up to where a dispatcher may go: what is there, not beyond a marker that has not passed."""
        rows, end = self.log[part], start
        while end < min(len(rows), start + ROUND_RECORDS) and rows[end][0] <= self.available:
            change = rows[end][1]
            if change is not None and not self._may_pass(part.table, change):
                break
            end += 1
        return end

    def _may_pass(self, table: TableId, change: int) -> bool:
        return passes(self.ddl, table, change, flaws=self.flaws) or "barrier_early" in self.flaws

    # -- the target, under its fence
    def fence_and_scan(self, parts: tuple[TablePartition, ...], epoch: int) -> dict[TablePartition, int]:
        for part in parts:
            if "fence" not in self.flaws:
                self.fence[part] = max(self.fence[part], epoch)
        return {part: self.next[part] if "scan" in self.flaws else self.written[part] for part in parts}

    def write(self, part: TablePartition, epoch: int, start: int, end: int) -> None:
        """A task's rows; refused when the writer is fenced."""
        if epoch < self.fence[part]:
            return
        if self.closed and start < end:
            raise Violation(f"C3 {self.feed}: written after it was removed")
        if start < end and self.spans and not any(part in span.parts for span in self.spans.values()):
            raise Violation(f"C3 {self.feed} {part.table.oid}/{part.partition}: written, and it is not recorded")
        for at in range(start, end):
            due = self.written[part]
            if at != due:
                raise Violation(f"C3 {self.feed} {part.table.oid}/{part.partition}: {at} written, {due} was due")
            self.written[part] = at + 1
            lsn, table = self.log[part][at][0], part.table
            since, done = self.since[table], self._done(table)
            wanted = [c.number for c in self.changes[since:] if table in c.tables and c.lsn <= lsn]
            if done != wanted:
                raise Violation(f"C7 {self.feed}: row {lsn} of {table.oid} after changes {done}, not {wanted}")

    def apply(self, table: TableId, number: int, epoch: int) -> bool:
        if epoch < self.ddl_fence:
            return False
        done = self._done(table)
        if number in done:
            raise Violation(f"C7 {self.feed}: change {number} of {table.oid} written twice")
        if done != [c.number for c in self.changes[self.since[table] : number] if table in c.tables]:
            raise Violation(f"C7 {self.feed}: change {number} of {table.oid} out of order")
        lsn = self.changes[number].lsn
        for part, rows in self.log.items():
            if part.table == table and self.written[part] < sum(at < lsn for at, _ in rows):
                raise Violation(f"C7 {self.feed}: change {number} of {table.oid} written before earlier rows")
        self.applied[table].append(number)
        return True

    def _done(self, table: TableId) -> list[int]:
        """Its changes in the target, as far as it was there."""
        return [number for number in self.applied[table] if number >= self.since[table]]

    # -- the ddl position
    def take_ddl(self, epoch: int) -> DdlPosition | None:
        if self.ddl.epoch >= epoch:
            return None
        self.ddl = DdlPosition(epoch, self.ddl.next, self.ddl.isolated)
        if "fence" not in self.flaws:
            self.ddl_fence = epoch
        return self.ddl

    def commit_ddl(self, expected: DdlPosition, wanted: DdlPosition) -> bool:
        if self.ddl != expected and "commit_any" not in self.flaws:
            return False
        rejoined = {table for table, _ in self.ddl.isolated} - {table for table, _ in wanted.isolated}
        ending = {table for table, last in self.died.items() if self.ddl.next <= last < wanted.next}
        self.missed |= ending & self._out()
        self.ddl = wanted
        if rejoined:
            self._check_checkpoint(excused=self.joined)
        return True

    # -- the office's records
    def wrote(self, record: FeedRecords) -> None:
        match record:
            case CheckpointReached():
                if record.lsn < self.checkpoint:
                    raise Violation(f"C6 {self.feed}: checkpoint went back from {self.checkpoint} to {record.lsn}")
                self.checkpoint = record.lsn
                self.joined = {}
                self._check_checkpoint()
            case EpochsTaken():
                self._give(record.upto)
            case SpanRecorded():
                self._cover(record.id, record.span)
                self._joins(record.span.table)
            case TableEnds():
                if record.change == LEFT:
                    self.left.add(record.table)
            case SpecSettled():
                self.rules.settle(record.spec)
                self._come_later()
            case FeedRewound():
                if record.rewind <= self.rewinds:
                    raise Violation(f"C4 {self.feed}: rewind {record.rewind} is recorded again")
                self.rewinds, self.checkpoint = record.rewind, record.lsn
                self.needs.clear()
            case TableNeedsCopy():
                self._needs(record)
            case SpansReplaced():
                self.kept.moved(tuple(part for _, span in record.new for part in span.parts))
                before = sorted(part for span_id in record.old for part in self.spans.pop(span_id).parts)
                for span_id, span in record.new:
                    self._cover(span_id, span)
                if before != sorted(part for _, span in record.new for part in span.parts):
                    raise Violation(f"C4 {self.feed}: {record} loses or doubles a partition")
            case SpanEnded():
                del self.spans[record.id]
            case SpanPlaced():
                self.kept.moved(self.spans[record.id].parts)
                epoch = record.place.epoch
                if epoch in self._placed:
                    raise Violation(f"V9 {self.feed}: epoch {epoch} placed twice")
                self._placed.add(epoch)
                if epoch not in self._given:
                    self._give(epoch)

    def _needs(self, record: TableNeedsCopy) -> None:
        if record.why is None:
            self.needs.discard(record.table)
            self.written |= {part: self.next[part] for part in self.log if part.table == record.table}
        else:
            self.needs.add(record.table)
            self.needed.add(record.table)

    def _joins(self, table: TableId) -> None:
        """Here for the first time, or again: then changes that it has met before are not told again."""
        self.left.discard(table)
        if self.rules.updates or table in self.needed:
            self.joined[table] = self.checkpoint             # its making, too, may lie behind the checkpoint
            if self.born[table] < self.ddl.next:
                self.since[table] = max((self.ddl.next, *(number + 1 for number in self.applied[table])))

    def _come_later(self) -> None:
        """Tables that the spec takes, and whose making has not passed: that may lie behind the checkpoint."""
        recorded = {span.table for span in self.spans.values()}
        if self.rules.updates and self.rules.settled is not None:
            self.joined |= {table: self.checkpoint for table in self.tables
                            if table not in recorded and self.rules.settled.takes(table)}

    def _cover(self, span_id: SpanId, span: Span) -> None:
        twice = [part for other in self.spans.values() for part in other.parts if part in span.parts]
        if twice or span_id in self.spans:
            raise Violation(f"C4 {self.feed}: span {span_id} covers {twice} a second time")
        if span.table in self.missed:
            raise Violation(f"C7 {self.feed}: span {span_id} is of table {span.table.oid}, which was dropped before")
        self.spans[span_id] = span

    def _give(self, epoch: int) -> None:
        if epoch and self._given and epoch <= max(self._given):
            raise Violation(f"V9 {self.feed}: epoch {epoch} given out after {max(self._given)}")
        self._given.add(epoch)

    def _out(self) -> set[TableId]:
        recorded = {span.table for span in self.spans.values()}
        return {table for table in self.tables
                if table in self.left or table in self.needs
                or (table not in recorded and (table in self.needed or self.rules.may_be_out(table)))}

    def _check_checkpoint(self, excused: Mapping[TableId, int] = {}) -> None:
        """Nothing at or below it is unfinished, isolated tables aside, and those that are out or catch up."""
        isolated = {table for table, _ in self.ddl.isolated} | self._out() | self.missed | excused.keys()
        lsn = self.checkpoint
        for part, rows in self.log.items():
            last = self.died.get(part.table)
            for at, marker in rows[self.next[part] :]:
                if at <= lsn and part.table not in isolated and (marker is None or marker != last):
                    raise Violation(f"C6 {self.feed}: checkpoint {lsn} past {at} of {part.table.oid}/{part.partition}")
        for change in self.changes:
            late = [t for t in change.tables
                    if t not in isolated and change.number >= self.since[t] and change.number not in self.applied[t]]
            if change.lsn <= lsn and late:
                raise Violation(f"C6 {self.feed}: checkpoint {lsn} past change {change.number}, which is not written")


