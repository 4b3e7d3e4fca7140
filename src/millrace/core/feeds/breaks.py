"""What broke in a source's tables, for a changefeed that says `on_schema_break: stop` [S12].

    progress ─▶ a truncation before a copy that replaces, a copy that has a reason ─▶ the table is out, with the reason
             └▶ a copy that somebody asked for, told later ─▶ with this one it may begin anew

In: records of `progress`, in order. Out: tables that are broken. Promise: the same log names the same tables, whoever
reads it; what broke before a changefeed was made does not concern it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.model.progress import Change, CopyStarted, ProgressRecord
from millrace.model.tables import Oid


@dataclass(slots=True)
class Breaks:
    """`since`: records before this one are from before the changefeed was made."""

    since: int = 0
    broken: dict[Oid, str] = field(default_factory=dict)
    behind: dict[Oid, int] = field(default_factory=dict)     # where a table broke last: it begins with a later copy
    _copies: set[int] = field(default_factory=set)

    def replay(self, offset: int, record: ProgressRecord) -> Oid | None:
        """The table that breaks here."""
        match record:
            case Change(begins=True, text=why) if why and offset >= self.since:
                return self._break(offset, record.oid, why)
            case CopyStarted() if record.copy not in self._copies:
                self._copies.add(record.copy)                # readers say it again
                if record.why and offset >= self.since:
                    return self._break(offset, record.oid, record.why)
                if record.whole and not record.why:
                    self.broken.pop(record.oid, None)
        return None

    def _break(self, offset: int, oid: Oid, why: str) -> Oid:
        self.broken[oid], self.behind[oid] = why, offset
        return oid
