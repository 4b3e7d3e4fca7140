"""What the judge of the proof finds: harm, where, what; and how it names messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from millrace.cli.prove_messages import ALTER, Seen, Told

Harm = Literal["malformed", "doubled", "order", "lost", "invented", "wrong", "value", "copy", "schema", "late", "rows"]


class Finding(NamedTuple):
    harm: Harm
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.harm}: {self.where}: {self.what}"


def all_of(told: Told) -> Iterator[Seen]:
    return (seen for messages in told.values() for seen in messages)


def name_of(seen: Seen) -> str:
    key = "" if seen.key is None else f" of {seen.key.decode(errors='replace')[:60]}"
    return f"{seen.op or ALTER} {'.'.join(seen.table)}{key} at {tuple(seen.place)}"
