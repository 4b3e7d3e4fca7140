"""Tables rebuilt from the messages of their topics, as a consumer would, and compared with the database.

In: messages of one table, in order. Out: its rows. Promise: a value that was not sent is taken from
the row that had it, also across a change of the key; one that nobody knows is told, never invented.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from millrace.cli.prove_messages import DELETE, UNAVAILABLE, Row, Seen

MOST = 5                               # differences of a table that are told


@dataclass
class Held:
    """One table: rows by key; where there is no key, how often each row is there."""

    keyed: dict[bytes, Row] = field(default_factory=dict)
    whole: Counter[bytes] = field(default_factory=Counter)
    left: dict[bytes, Row] = field(default_factory=dict)        # by key: as they were when they went

    @property
    def count(self) -> int:
        return len(self.keyed) + self.whole.total()

    def rows(self, columns: Iterable[str]) -> Counter[bytes]:
        """Of these columns: one that the table has no more stays in rows that nobody has sent again, one that came
        without a value is not in them yet."""
        names = list(columns)
        shown = ({name: row.get(name) for name in names} if names else row for row in self.keyed.values())
        return Counter(map(canonical, shown)) + self.whole


def rebuilt(events: Iterable[Seen]) -> Held:
    held = Held()
    for seen in events:
        if seen.kind == "truncate":
            held.keyed.clear()
            held.whole.clear()
            held.left.clear()                                   # what was there before is nobody's to know
        elif seen.key is None:
            _apply_whole(held, seen)
        else:
            _apply(held, seen.key, seen)
    return held


def differences(held: Held | None, rows: Sequence[Row]) -> Iterator[str]:
    """Nothing where they are the same."""
    columns = rows[0] if rows else ()
    wanted, found = Counter(map(canonical, rows)), Counter[bytes]() if held is None else held.rows(columns)
    for what, several in (("only in the database", wanted - found), ("only in the topics", found - wanted)):
        yield from (f"{what}: {row.decode()[:200]}" for row in list(several.elements())[:MOST])
        if several.total() > MOST:
            yield f"{what}: {several.total() - MOST} rows more"


def canonical(row: Row) -> bytes:
    return msgspec.json.encode(sorted(row.items()))


def _apply(held: Held, key: bytes, seen: Seen) -> None:
    if seen.op == DELETE:
        gone = held.keyed.pop(key, None)
        if gone is not None:
            held.left[key] = gone
        return
    assert seen.after is not None
    donor = held.left.get(seen.old_key, {}) if seen.old_key is not None else held.keyed.get(key, {})
    held.keyed[key] = {name: donor.get(name, value) if value == UNAVAILABLE else value
                       for name, value in seen.after.items()}


def _apply_whole(held: Held, seen: Seen) -> None:
    if seen.before is not None:
        held.whole[canonical(seen.before)] -= 1
    if seen.after is not None:
        held.whole[canonical(seen.after)] += 1

