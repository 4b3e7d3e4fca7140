"""What `progress` says: the last mark, and which schema of each table is in force where a reader goes on [S3, S7].

In: the records of `progress`, in order. Out: the folded mark; per table the schema at the resumed position, which the
decoder starts with, and whether it was dropped there; what was named behind that position, so that nothing is named
twice.
Promise: the live catalogue plays no part: a schema comes from the record that was written when its change was read.

A version with commit LSN -1 is known, for rows that a copy read ahead of the stream, but in force nowhere.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from millrace.core.sources.reader import Folded, fold
from millrace.model.progress import Change, Mark, ProgressRecord, SchemaVersion
from millrace.model.tables import NOWHERE, Lsn, Oid, Place, TableSchema


class ProgressFold:
    """Reads `progress` from its start to our fence. What belongs to earlier generations is passed over."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._versions: dict[Oid, list[SchemaVersion]] = {}
        self._named: dict[Oid, Place] = {}
        self._ids: set[UUID] = set()
        self._lives: Lives = {}
        self._full_seen = False
        self.count = 0                       # records read
        self.mark: Folded | None = None

    def record(self, record: ProgressRecord) -> None:
        self.count += 1
        if isinstance(record, Mark):
            # Where retention has cut the topic, marks before the first full one name only some of the ends.
            self._full_seen = self._full_seen or record.full
            if self._full_seen:
                self.mark = fold(self.mark, record)
        elif record.generation != self._generation:
            return
        elif isinstance(record, SchemaVersion):
            self._ids.add(record.table.id)
            self._versions.setdefault(record.table.oid, []).append(record)
            self._name(record.table.oid, Place(record.commit_lsn, record.seq))
        elif isinstance(record, Change):
            self._name(record.oid, Place(record.commit_lsn, record.seq))
            if record.kind in ("drop", "create"):
                self._lives.setdefault(record.oid, []).append((record.commit_lsn, record.kind == "create"))

    def _name(self, oid: Oid, place: Place) -> None:
        self._named[oid] = max(self._named.get(oid, NOWHERE), place)

    @property
    def named_lsn(self) -> Lsn:
        """The greatest commit LSN that a schema version or change names; -1: none does."""
        return max((place.commit_lsn for place in self._named.values()), default=-1)

    def schemas(self, resolved: Lsn, dropped: Collection[Oid] = ()) -> Schemas:
        """`dropped`: tables that the office knows as dropped; `progress` may begin behind the record of the drop."""
        in_force = {oid: version.table for oid, version in self._in_force(resolved).items()}
        return Schemas(in_force, dict(self._named), set(self._ids), lives=self._lives, dropped=dropped)

    def restated(self, resolved: Lsn) -> list[SchemaVersion]:
        """What a reader that begins to read behind all this must find: schemas in force, and what was named since."""
        later = [version for versions in self._versions.values() for version in versions
                 if version.commit_lsn > resolved]
        return [*self._in_force(resolved).values(), *later]

    def _in_force(self, resolved: Lsn) -> dict[Oid, SchemaVersion]:
        found: dict[Oid, SchemaVersion] = {}
        for oid, versions in self._versions.items():
            passed = [version for version in versions if 0 <= version.commit_lsn <= resolved]
            if passed:
                found[oid] = max(passed, key=lambda version: (version.commit_lsn, version.seq))
        return found


Lives = dict[Oid, list[tuple[Lsn, bool]]]        # of a table, in order: dropped (False) or back (True) at this commit


class Schemas:
    """Schemas in force, and the places named so far. One per generation; lives over reconnects."""

    def __init__(self, in_force: dict[Oid, TableSchema], named: dict[Oid, Place], ids: set[UUID], *,
                 lives: Lives | None = None, dropped: Collection[Oid] = ()) -> None:
        self.in_force = in_force
        self._lives: Lives = lives if lives is not None else {}
        self._dropped = frozenset(dropped)
        self.ids = ids                       # of every version that stands in `progress`, in force or not
        self._named = named
        self._history: dict[Oid, list[tuple[Place, TableSchema]]] = {
            oid: [(Place(-1, -1), table)] for oid, table in in_force.items()
        }

    def is_named(self, oid: Oid, place: Place) -> bool:
        """A version or change at this place stands in `progress` already: a former reader, or connection, wrote it."""
        return place <= self._named.get(oid, NOWHERE)

    def named(self, oid: Oid, place: Place) -> None:
        self._named[oid] = max(self._named.get(oid, NOWHERE), place)

    @property
    def named_lsn(self) -> Lsn:
        return max((place.commit_lsn for place in self._named.values()), default=-1)

    def use(self, table: TableSchema, place: Place) -> None:
        """From `place` on. Read again after a reconnect, it changes nothing."""
        self.ids.add(table.id)
        history = self._history.setdefault(table.oid, [])
        if not history or history[-1][0] < place:
            history.append((place, table))
        self.in_force[table.oid] = table

    def at(self, resolved: Lsn) -> dict[Oid, TableSchema]:
        """In force behind all commits up to `resolved`; older history is forgotten: nobody goes back below it."""
        found: dict[Oid, TableSchema] = {}
        for oid, history in self._history.items():
            passed = [entry for entry in history if entry[0].commit_lsn <= resolved]
            if passed:
                found[oid] = passed[-1][1]
                self._history[oid] = history[len(passed) - 1:]
        return found

    def lived(self, oid: Oid, commit_lsn: Lsn, *, is_there: bool) -> None:
        """The table was dropped, or is back. Read again after a reconnect, it changes nothing."""
        lives = self._lives.setdefault(oid, [])
        if not lives or lives[-1][0] < commit_lsn:
            lives.append((commit_lsn, is_there))

    def dropped_at(self, resolved: Lsn) -> set[Oid]:
        """Behind all commits up to `resolved`. Whoever reads on from there must find the same tables dropped as every
        other reader: which names are taken decides the places of changes."""
        return {oid for oid in self._lives.keys() | self._dropped if not self._is_there(oid, resolved)}

    def _is_there(self, oid: Oid, resolved: Lsn) -> bool:
        lives = self._lives.get(oid)
        if not lives:
            return oid not in self._dropped
        passed = [is_there for lsn, is_there in lives if lsn <= resolved]
        return passed[-1] if passed else not lives[0][1]
