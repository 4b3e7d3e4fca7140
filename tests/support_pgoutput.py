"""Messages of pgoutput and COPY BINARY, written by plain Python: for tests and benchmarks of the decoders."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from types import EllipsisType

from millrace.model.tables import TableSchema

UNCHANGED: EllipsisType = ...
Cell = bytes | EllipsisType | None

POSTGRES_EPOCH_US = 946_684_800_000_000


def xlog(body: bytes, lsn: int = 0) -> bytes:
    return b"w" + pack(">QQQ", lsn, lsn, 0) + body


def keepalive(wal_end: int, *, reply: bool = False) -> bytes:
    return b"k" + pack(">QQB", wal_end, 0, reply)


def begin(commit_lsn: int, ts: int, xid: int) -> bytes:
    return b"B" + pack(">QqI", commit_lsn, ts, xid)


def commit(commit_lsn: int, end_lsn: int, ts: int) -> bytes:
    return b"C\0" + pack(">QQq", commit_lsn, end_lsn, ts)


def stream_start(xid: int, *, first: bool = True) -> bytes:
    return b"S" + pack(">IB", xid, first)


def stream_stop() -> bytes:
    return b"E"


def stream_commit(xid: int, commit_lsn: int, end_lsn: int, ts: int) -> bytes:
    return b"c" + pack(">IBQQq", xid, 0, commit_lsn, end_lsn, ts)


def stream_abort(xid: int, subxid: int) -> bytes:
    return b"A" + pack(">II", xid, subxid)


def streamed(body: bytes, xid: int) -> bytes:
    """The same message inside of a streamed block."""
    return body[:1] + pack(">I", xid) + body[1:]


def relation(table: TableSchema) -> bytes:
    full = table.identity == "f"
    columns = b"".join(
        bytes([full or c.is_key]) + c.name.encode() + b"\0" + pack(">Ii", c.type_oid, c.typmod) for c in table.columns)
    return (b"R" + pack(">I", table.oid) + table.schema.encode() + b"\0" + table.name.encode() + b"\0"
            + table.identity.encode() + pack(">H", len(table.columns)) + columns)


def row(cells: Sequence[Cell]) -> bytes:
    parts = [pack(">H", len(cells))]
    for cell in cells:
        if cell is None:
            parts.append(b"n")
        elif isinstance(cell, bytes):
            parts += [b"t", pack(">I", len(cell)), cell]
        else:
            parts.append(b"u")
    return b"".join(parts)


def insert(oid: int, new: Sequence[Cell]) -> bytes:
    return b"I" + pack(">I", oid) + b"N" + row(new)


def update(oid: int, new: Sequence[Cell], old: Sequence[Cell] | None = None, tag: bytes = b"K") -> bytes:
    before = b"" if old is None else tag + row(old)
    return b"U" + pack(">I", oid) + before + b"N" + row(new)


def delete(oid: int, old: Sequence[Cell], tag: bytes = b"K") -> bytes:
    return b"D" + pack(">I", oid) + tag + row(old)


def truncate(oids: Sequence[int], flags: int = 0) -> bytes:
    return b"T" + pack(">IB", len(oids), flags) + b"".join(pack(">I", oid) for oid in oids)


def message(prefix: str, content: bytes, lsn: int, *, transactional: bool = True) -> bytes:
    return b"M" + pack(">BQ", transactional, lsn) + prefix.encode() + b"\0" + pack(">I", len(content)) + content


COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"


def copy_row(cells: Sequence[bytes | None]) -> bytes:
    return pack(">h", len(cells)) + b"".join(
        pack(">i", -1) if cell is None else pack(">i", len(cell)) + cell for cell in cells)
