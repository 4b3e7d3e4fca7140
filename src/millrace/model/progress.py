"""Records of a source's `progress` topic: one partition, in the order of the WAL.

    reader ──▶ Mark, SchemaVersion, Change, LowMark, HighMark ──┐
    copy task ──▶ Manifest ─────────────────────────────────────┴──▶ progress ──▶ dispatchers, the next reader

Encoded as msgpack maps with a tag, behind one byte of version. A reader that meets a newer version stops [L19].
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.model.tables import Lsn, Oid, TableSchema

VERSION = 1


class Progress(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of all progress records."""

    generation: int


class End(msgspec.Struct, frozen=True, array_like=True):
    """The offset of the first record of a partition with a change above the mark's resolved LSN."""

    oid: Oid
    partition: int
    offset: int


class Mark(Progress, frozen=True, tag="mark"):
    """All changes up to `resolved` are in the log, below these ends. A full mark names every partition [S3].

    `system_id` and `timeline` are those of the connection that delivered the changes, not the present ones.
    """

    resolved: Lsn
    system_id: str
    timeline: int
    full: bool
    ends: tuple[End, ...]
    wall_ms: int = 0


class SchemaVersion(Progress, frozen=True, tag="schema"):
    """From (commit LSN, seq) on, the table's records are of this schema. Acknowledged before the first of them [S7]."""

    table: TableSchema
    commit_lsn: Lsn
    seq: int


class Change(Progress, frozen=True, tag="change"):
    """A schema change or truncation, standing also as a marker in every partition of its table. `begins`: nobody has
    truncated the table, but a generation begins here, or a copy that replaces it, or its name went to another table:
    what was told of it before counts no more; where the table goes on copies follow [S9, S12]."""

    oid: Oid
    commit_lsn: Lsn
    seq: int
    kind: Literal["create", "alter", "truncate", "drop"]
    schema_id: UUID | None = None
    previous_id: UUID | None = None
    text: str = ""               # what the statement said, for people; never replayed
    wall_ms: int = 0
    xid: int = 0                 # its transaction, 32 bits: whether the rows of a window without a key contain it
    begins: bool = False


class CopyStarted(Progress, frozen=True, tag="copy"):
    """A copy was planned; its rows go to a topic of their own. `at`: the snapshot's consistent point, 0 for windows."""

    copy: int
    oid: Oid
    topic: str
    chunks: int
    at: Lsn
    kind: Literal["snapshot", "watermark"]
    feeds: tuple[str, ...] = ()    # changefeeds it is for; empty: all
    whole: bool = True             # of the whole table: what none of its chunks holds is deleted; else of single keys
    why: str = ""                  # what broke, so that rows must be told again; "": nothing did


class ChunksAbandoned(Progress, frozen=True, tag="abandoned"):
    """Their snapshot died: manifests of the snapshot count no more, windows follow [S4]."""

    copy: int
    chunks: tuple[int, ...]


class LowMark(Progress, frozen=True, tag="low"):
    copy: int
    chunk: int
    attempt: int
    lsn: Lsn                      # commit LSN of the mark's own transaction


class HighMark(Progress, frozen=True, tag="high"):
    copy: int
    chunk: int
    attempt: int
    lsn: Lsn


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Offsets [start, end) of one partition of a copy's topic."""

    partition: int
    start: int
    end: int


class Manifest(Progress, frozen=True, tag="manifest"):
    """What one attempt at one chunk has written, acknowledged. Only ranges in manifests count [S4]."""

    copy: int
    chunk: int
    attempt: int
    oid: Oid
    kind: Literal["snapshot", "watermark"]
    schema_id: UUID
    ranges: tuple[Range, ...]
    rows: int
    bytes: int
    # The chunk's part of the table: keys (low, high] as text per key column, or None: by place in the table.
    low_key: tuple[str, ...] | None = None
    high_key: tuple[str, ...] | None = None
    # What the rows were read in, as pg_current_snapshot() prints it (xmin:xmax:xip,…): which transactions they contain.
    snapshot: str = ""


class TableState(Progress, frozen=True, tag="table"):
    """What a dispatcher must know of a table beyond its rows."""

    oid: Oid
    state: Literal["streaming", "needs_copy", "dropped", "refused"]
    reason: str = ""


ProgressRecord = (
    Mark | SchemaVersion | Change | CopyStarted | ChunksAbandoned | LowMark | HighMark | Manifest | TableState
)

_decoder: msgspec.msgpack.Decoder[ProgressRecord] = msgspec.msgpack.Decoder(ProgressRecord)


def encode_progress(record: ProgressRecord) -> bytes:
    return bytes([VERSION]) + msgspec.msgpack.encode(record)


def is_mark(data: bytes) -> bool:
    """Without decoding it; False is no proof."""
    return data[2:9] == b"\xa1t\xa4mark"


def decode_progress(data: bytes) -> ProgressRecord:
    if not data:
        raise Malformed("progress record without version")
    if data[0] > VERSION:
        raise NewerFormat(f"progress record of version {data[0]}, this is version {VERSION}")
    try:
        return _decoder.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"progress record: {error}") from error
