"""Durable records about sources.

Office `coordinator`: which sources there are and who reads them. Office `source/<name>`: written under the reader's
epoch; what the reader must find again. State is what replaying them gives.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from millrace.errors import Malformed, NewerFormat
from millrace.model.tables import Lsn, Oid

VERSION = 1

T = TypeVar("T")


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. `url` may hold references (`${env:…}`, `${file:…}`), never a password in the clear."""

    name: str
    url: str
    tables: tuple[str, ...] = ("*.*",)       # rules: `public.*`, `!public.tmp_*`, last match wins
    slot: str = ""                            # empty: millrace_<name>
    publication: str = ""                     # empty: millrace_<name>
    ddl_triggers: Literal["auto", "on", "off"] = "auto"
    partitions: int = 0                       # of every table; 0: by size
    carry_whole: tuple[str, ...] = ()         # tables without a key that are carried with identity FULL by choice
    wal_budget_bytes: int = 0                 # 0: max_slot_wal_keep_size of the server, else warn above this
    keep_s: int = -1                          # how long the log keeps changes and copies nobody holds; -1: for ever
    keep_bytes: int = -1                      # of each partition of a table, the same


class CoordinatorRecord(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of the coordinator's records."""


class SourceCreated(CoordinatorRecord, frozen=True, tag="source_created"):
    spec: SourceSpec
    wall_ms: int


class SourceRemoving(CoordinatorRecord, frozen=True, tag="source_removing"):
    """No reader any more; what it made in the database and in the log is being removed."""

    source: str


class SourceRemoved(CoordinatorRecord, frozen=True, tag="source_removed"):
    source: str


class ReaderPlaced(CoordinatorRecord, frozen=True, tag="reader_placed"):
    """From now on this capture's process reads the source, under this epoch; lower ones are fenced by it."""

    source: str
    capture: int
    incarnation: int
    epoch: int


CoordinatorRecords = SourceCreated | SourceRemoving | SourceRemoved | ReaderPlaced


class SourceRecord(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of the records of one source's office."""


class NamesTaken(SourceRecord, frozen=True, tag="names_taken"):
    """Nothing of ours stood under these names in the database when the source began: what does from here on is its
    own, to be made anew and to be taken away [S1]."""

    slot: str
    publication: str


class WriterTaken(SourceRecord, frozen=True, tag="writer"):
    """The writer id under which readers write; `first_epoch` is the reader epoch that is its writer epoch 0."""

    writer_id: int
    first_epoch: int


class TableAdded(SourceRecord, frozen=True, tag="table_added"):
    oid: Oid
    schema: str
    name: str
    topic: str
    partitions: int
    generation: int


class TableGone(SourceRecord, frozen=True, tag="table_gone"):
    oid: Oid
    reason: str


class TableLeaves(SourceRecord, frozen=True, tag="table_leaves"):
    """The partitions that hold a table's rows, as last looked after: one that comes or goes takes rows with it, and
    the stream does not tell. `files`: of each of them; one that is truncated gets another, and the stream tells
    nothing of that, either."""

    oid: Oid
    leaves: tuple[Oid, ...]
    files: tuple[int, ...] = ()


class TablePublished(SourceRecord, frozen=True, tag="table_published"):
    """On which terms a table is published, as last looked after: they change when it is taken out and put in again,
    and rows written in between are not in the stream."""

    oid: Oid
    terms: str


class TableLabels(SourceRecord, frozen=True, tag="table_labels"):
    """Values of the enums in a table's columns, as last looked after, by their oids: one that is renamed is another
    in every row, and the stream does not tell."""

    oid: Oid
    labels: dict[int, str]


class RowsMoved(SourceRecord, frozen=True, tag="rows_moved"):
    """Rows whose key changed during a copy, which cannot complete them: they are owed a copy of their own, under these
    keys. An empty one: a key that cannot be named. A copy of the whole table pays for all."""

    oid: Oid
    keys: tuple[tuple[str, ...], ...]


class TableSeen(SourceRecord, frozen=True, tag="table_seen"):
    """The snapshot with whose copy a table joined, as pg_current_snapshot() prints it: the stream leaves out what it
    shows. Empty: every transaction of that time has ended and been read."""

    oid: Oid
    snapshot: str


class ProgressBase(SourceRecord, frozen=True, tag="progress_base"):
    """A reader needs to read `progress` from here on only: every schema in force and a full mark stand behind it."""

    offset: int


class GenerationRaised(SourceRecord, frozen=True, tag="generation"):
    """History broke, or began: everything before `at` comes by copies [S9]."""

    generation: int
    reason: str
    at: Lsn
    system_id: str
    timeline: int


class CopyPlanned(SourceRecord, frozen=True, tag="copy_planned"):
    copy: int
    generation: int
    oid: Oid
    topic: str
    partitions: int
    kind: Literal["snapshot", "watermark"]
    at: Lsn
    # Block ranges [from, to) of a relation (leaf partitions each by their own oid), or key bounds as text.
    chunks: tuple[ChunkSpan, ...]
    feeds: tuple[str, ...] = ()
    why: str = ""        # what broke; "": nothing did, somebody wants it, or the table has joined


class ChunkSpan(msgspec.Struct, frozen=True, array_like=True):
    """What one chunk covers: blocks of relation `relation`, or keys (low, high], or single `keys`; to_block -1 and high
    None are open."""

    relation: Oid
    from_block: int = 0
    to_block: int = -1
    low_key: tuple[str, ...] | None = None
    high_key: tuple[str, ...] | None = None
    by_key: bool = False
    file: int = 0        # the relation's file when it was planned; after a rewrite its blocks hold other rows
    bytes: int = -1      # about, of the relation with its large values, when it was planned; -1: not known
    keys: tuple[tuple[str, ...], ...] = ()


class ChunkAttempted(SourceRecord, frozen=True, tag="chunk_attempted"):
    """Written before an attempt begins: attempt numbers are never used twice."""

    copy: int
    chunk: int
    attempt: int


class ChunkDone(SourceRecord, frozen=True, tag="chunk_done"):
    copy: int
    chunk: int
    attempt: int
    rows: int
    bytes: int


class SnapshotLost(SourceRecord, frozen=True, tag="snapshot_lost"):
    """The chunks not yet done become windows."""

    copy: int
    chunks: tuple[int, ...]


class SourceTableState(SourceRecord, frozen=True, tag="table_state"):
    oid: Oid
    state: Literal["streaming", "needs_copy", "dropped", "refused"]
    reason: str
    replaces: bool = False       # keys that stood there before may be gone: the copy begins with a truncation


SourceRecords = (
    NamesTaken | WriterTaken | TableAdded | TableGone | TableLeaves | TableLabels | TablePublished | TableSeen
    | ProgressBase | GenerationRaised | CopyPlanned | RowsMoved | ChunkAttempted | ChunkDone | SnapshotLost
    | SourceTableState
)

_coordinator: msgspec.msgpack.Decoder[CoordinatorRecords] = msgspec.msgpack.Decoder(CoordinatorRecords)
_source: msgspec.msgpack.Decoder[SourceRecords] = msgspec.msgpack.Decoder(SourceRecords)


def encode_record(record: CoordinatorRecords | SourceRecords) -> bytes:
    return bytes([VERSION]) + msgspec.msgpack.encode(record)


def decode_coordinator(data: bytes) -> CoordinatorRecords:
    return _decode(data, _coordinator)


def decode_source(data: bytes) -> SourceRecords:
    return _decode(data, _source)


def _decode(data: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    if not data:
        raise Malformed("record without version")
    if data[0] > VERSION:
        raise NewerFormat(f"source record of version {data[0]}, this is version {VERSION}")
    try:
        return decoder.decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"source record: {error}") from error
