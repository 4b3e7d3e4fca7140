"""Positions of a streaming query as Spark's checkpoint keeps them.

    {"version": 1, "topic": "<id of the table's topic>", "generation": 1, "progress": 812, "offsets": {"0": 17, "1": 3}}

Spark writes the end of a batch down before it runs it, but not where the first batch began: after a crash it asks
`initialOffset` again, and `latest` has moved by then. So the end of a first batch says itself where the batch `began`,
and that counts. Errors: DataLost when a checkpoint is of another topic than the one that has the table's name now.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from millrace.core.sources.table_history import Cut
from millrace.errors import DataLost, InvalidOption, NewerFormat

VERSION = 1


class Position(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: int
    topic: UUID
    generation: int
    progress: int
    offsets: dict[str, int]
    initial: bool = False                                 # made by `initialOffset`: nothing was read yet
    began: Position | None = None                         # in the end of a first batch

    @property
    def cut(self) -> Cut:
        return Cut(self.generation, self.progress, tuple(self.offsets[str(n)] for n in range(len(self.offsets))))


def position_of(topic: UUID, cut: Cut, *, initial: bool = False, began: Position | None = None) -> Position:
    offsets = {str(n): offset for n, offset in enumerate(cut.offsets)}
    return Position(version=VERSION, topic=topic, generation=cut.generation, progress=cut.progress, offsets=offsets,
                    initial=initial, began=began)


def encode_position(position: Position) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(position)
    return found


def decode_position(given: dict[str, Any], topic: UUID) -> Position:
    if (version := given.get("version", 0)) > VERSION:
        raise NewerFormat(f"position of version {version} in the checkpoint, this is version {VERSION}")
    try:
        position = msgspec.convert(given, Position)
        assert position.cut.offsets is not None
    except (msgspec.ValidationError, KeyError) as error:
        raise InvalidOption(f"not a position of a millrace table: {str(given)[:200]} ({error})") from error
    if position.topic != topic:
        raise DataLost(f"the checkpoint is of topic {position.topic}, the table's is {topic} now: it was made anew. "
                       f"Start with a new checkpoint")
    return position


def begin_of(start: Position, end: Position) -> Position:
    """Where the batch that ends at `end` begins, whatever `initialOffset` says today."""
    return end.began if start.initial and end.began is not None else start
