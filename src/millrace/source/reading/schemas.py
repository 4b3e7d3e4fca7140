"""What `progress` says: the last mark, and which schema of each table is in force where a reader goes on [S3, S7].

In: the records of `progress`, in order. Out: the folded mark; per table the schema at the resumed position, which the
decoder starts with; what was named behind that position, so that nothing is named twice.
Promise: the live catalogue plays no part: a schema comes from the record that was written when its change was read.

A version with commit LSN -1 is known, for rows that a copy read ahead of the stream, but in force nowhere.
"""

from __future__ import annotations

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

    def _name(self, oid: Oid, place: Place) -> None:
        self._named[oid] = max(self._named.get(oid, NOWHERE), place)

    @property
    def named_lsn(self) -> Lsn:
        """The greatest commit LSN that a schema version or change names; -1: none does."""
        return max((place.commit_lsn for place in self._named.values()), default=-1)

    def schemas(self, resolved: Lsn) -> Schemas:
        in_force = {oid: version.table for oid, version in self._in_force(resolved).items()}
        return Schemas(in_force, dict(self._named), set(self._ids))

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


class Schemas:
    """Schemas in force, and the places named so far. One per generation; lives over reconnects."""

    def __init__(self, in_force: dict[Oid, TableSchema], named: dict[Oid, Place], ids: set[UUID]) -> None:
        self.in_force = in_force
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

    def forget(self, oid: Oid) -> None:
        """The table is gone."""
        self.in_force.pop(oid, None)
        self._history.pop(oid, None)
