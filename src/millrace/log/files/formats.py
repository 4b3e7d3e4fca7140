"""Bytes of the files a broker keeps, each with its format version.

In: values. Out: bytes, and back. Promise: whatever is decoded was checked by CRC32C; what a newer millrace wrote raises
NewerFormat with one clear line, everything else that is not ours decodes to None and is for the caller to judge.

    log file    header 64 bytes, then record batches as they came
    index file  of one log file: where batches start, every few KiB; only a cache, made anew when it is missing
    journal     header 64 bytes, then entries; an entry of another journal number ends it (files are used again)
    checkpoint  one per directory: per partition how far its files are known to be synced, and what they add up to

docs/formats.md has the layouts.
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from typing import NamedTuple
from uuid import UUID

import msgspec
from crc32c import crc32c

from millrace.errors import NewerFormat
from millrace.model.ids import TopicPartition

LOG_VERSION = 1
INDEX_VERSION = 1
JOURNAL_VERSION = 1
CHECKPOINT_VERSION = 2

HEADER_BYTES = 64      # of log files and journal files: batches and entries start here

_LOG = Struct(">4sHxx16sIQQ")          # magic, version, topic id, partition, base offset, generation
_JOURNAL = Struct(">4sHxxQ16s")        # magic, version, number, directory id
_CRC = Struct(">I")
_LOG_MAGIC, _JOURNAL_MAGIC, _INDEX_MAGIC, _CHECKPOINT_MAGIC = b"MRLF", b"MRJF", b"MRIX", b"MRCP"


class LogHeader(NamedTuple):
    """Names the file from inside. `generation` grows with every file made in a directory, for ever."""

    topic_id: UUID
    partition: int
    base: int
    generation: int


def _seal(body: bytes) -> bytes:
    body = body.ljust(HEADER_BYTES - _CRC.size, b"\0")
    return body + _CRC.pack(crc32c(body))


def _unseal(data: bytes, magic: bytes, version: int, what: str) -> bool:
    if len(data) < HEADER_BYTES or data[:4] != magic:
        return False
    if _CRC.unpack_from(data, HEADER_BYTES - _CRC.size)[0] != crc32c(data[: HEADER_BYTES - _CRC.size]):
        return False
    refuse_newer(int.from_bytes(data[4:6], "big"), version, what)
    return True


def refuse_newer(found: int, known: int, what: str) -> None:
    if found > known:
        raise NewerFormat(f"{what} has format {found}, this millrace reads up to {known}: start the newer millrace")


def encode_log_header(header: LogHeader) -> bytes:
    topic_id, partition, base, generation = header
    return _seal(_LOG.pack(_LOG_MAGIC, LOG_VERSION, topic_id.bytes, partition, base, generation))


def decode_log_header(data: bytes, path: str) -> LogHeader | None:
    if not _unseal(data, _LOG_MAGIC, LOG_VERSION, path):
        return None
    _, _, topic, partition, base, generation = _LOG.unpack_from(data)
    return LogHeader(UUID(bytes=topic), partition, base, generation)


def encode_journal_header(number: int, directory_id: UUID) -> bytes:
    return _seal(_JOURNAL.pack(_JOURNAL_MAGIC, JOURNAL_VERSION, number, directory_id.bytes))


def decode_journal_header(data: bytes, path: str) -> tuple[int, UUID] | None:
    if not _unseal(data, _JOURNAL_MAGIC, JOURNAL_VERSION, path):
        return None
    _, _, number, directory = _JOURNAL.unpack_from(data)
    return number, UUID(bytes=directory)


# -- journal entries -------------------------------------------------------------------------------------------------

APPEND, TRUNCATE, DELETE, START, RESTART = 1, 2, 3, 4, 5

_ENTRY = Struct(">IIQB16sIQQQ")        # size, crc, journal number, kind, topic id, partition, generation, two places
ENTRY_BYTES = _ENTRY.size
_ENTRY_CRC_FROM = 8
NO_DATA = memoryview(b"")


class Entry(NamedTuple):
    """One event of a partition, in the order in which it happened.

    APPEND: `data` lies at `position` of the log file with base `offset`, made as `generation`.
    TRUNCATE: the log ends at `offset`; what lay above is of generations below this one. Where a file was cut,
    `position` says where and `data` which one (`encode_base`). DELETE: all that lay there is of older generations.
    START: the log starts at `offset`; where files went, the first one now has base `position`, and `data` is the state
    of producers there. RESTART: the log is empty and starts at `offset`, with `data` as the state of producers.
    """

    kind: int
    tp: TopicPartition
    generation: int
    offset: int
    position: int = 0
    data: memoryview = NO_DATA


def encode_base(base: int) -> memoryview:
    return memoryview(base.to_bytes(8, "big"))


def decode_base(data: memoryview) -> int:
    return int.from_bytes(data, "big")


def encode_entry_head(number: int, entry: Entry) -> bytes:
    """The entry without its data, which follows as it is."""
    kind, (topic_id, partition), generation, offset, position, data = entry
    head = bytearray(ENTRY_BYTES)
    size = ENTRY_BYTES + len(data)
    _ENTRY.pack_into(head, 0, size, 0, number, kind, topic_id.bytes, partition, generation, offset, position)
    crc = crc32c(data, crc32c(memoryview(head)[_ENTRY_CRC_FROM:]))
    _CRC.pack_into(head, 4, crc)
    return bytes(head)


def decode_entries(data: memoryview, number: int) -> list[Entry]:
    """Entries of journal `number` from the start of `data` up to the first that is torn, or of a former use."""
    found: list[Entry] = []
    at = 0
    while at + ENTRY_BYTES <= len(data):
        size, crc, of, kind, topic, partition, generation, offset, position = _ENTRY.unpack_from(data, at)
        if of != number or size < ENTRY_BYTES or at + size > len(data):
            break
        if crc32c(data[at + _ENTRY_CRC_FROM : at + size]) != crc:
            break
        tp = TopicPartition(UUID(bytes=topic), partition)
        found.append(Entry(kind, tp, generation, offset, position, data[at + ENTRY_BYTES : at + size]))
        at += size
    return found


# -- index -----------------------------------------------------------------------------------------------------------

# magic, version, generation, covered bytes, next offset, newest timestamp, entries, bytes of producer state
_INDEX = Struct("<4sHxxQQQqII")


class IndexFile(NamedTuple):
    generation: int
    covered: int           # bytes of the log file the index was made from
    next_offset: int       # the offset behind them
    newest: int            # their newest timestamp
    offsets: array[int]
    positions: array[int]
    times: array[int]
    producers: bytes       # producer state behind them, empty when not kept


def encode_index(index: IndexFile) -> bytes:
    arrays = [index.offsets, index.positions, index.times]
    if sys.byteorder != "little":
        arrays = [array(a.typecode, a) for a in arrays]
        for a in arrays:
            a.byteswap()
    head = _INDEX.pack(
        _INDEX_MAGIC, INDEX_VERSION, index.generation, index.covered, index.next_offset, index.newest,
        len(index.offsets), len(index.producers),
    )
    body = b"".join([head, *(a.tobytes() for a in arrays), index.producers])
    return body + _CRC.pack(crc32c(body))


def decode_index(data: bytes) -> IndexFile | None:
    """None also for an index of a newer format: it is a cache and is made anew."""
    if len(data) < _INDEX.size + _CRC.size or _CRC.unpack_from(data, len(data) - 4)[0] != crc32c(data[:-4]):
        return None
    magic, version, generation, covered, next_offset, newest, count, blob = _INDEX.unpack_from(data)
    if magic != _INDEX_MAGIC or version != INDEX_VERSION or len(data) != _INDEX.size + 24 * count + blob + _CRC.size:
        return None
    arrays = []
    for n, code in enumerate("QQq"):
        a = array(code)
        a.frombytes(data[_INDEX.size + 8 * count * n : _INDEX.size + 8 * count * (n + 1)])
        if sys.byteorder != "little":
            a.byteswap()
        arrays.append(a)
    producers = data[_INDEX.size + 24 * count : -_CRC.size]
    return IndexFile(generation, covered, next_offset, newest, arrays[0], arrays[1], arrays[2], producers)


# -- checkpoint ------------------------------------------------------------------------------------------------------

class LogState(msgspec.Struct, frozen=True, array_like=True):
    """What a log adds up to at `end`, all of it synced. `file` -1: it has no bytes."""

    log_start: int
    end: int
    file: int              # base offset of the log file that ends here
    position: int          # and where in it
    generation: int        # of that file, or of the moment
    newest: int            # timestamp
    epochs: list[tuple[int, int]]
    producers: bytes
    front: bytes = b""     # state of producers before the first file


class Checkpoint(msgspec.Struct, array_like=True):
    """`journal_from`: entries of journals with a lower number are all in their files."""

    journal_from: int = 0
    logs: dict[bytes, bytes] = {}      # key of the partition -> LogState
    hws: dict[bytes, int] = {}


_CHECKPOINT = Struct(">4sHxxI")


def key_of(tp: TopicPartition) -> bytes:
    return tp.topic_id.bytes + tp.partition.to_bytes(4, "big")


def tp_of(key: bytes) -> TopicPartition:
    return TopicPartition(UUID(bytes=key[:16]), int.from_bytes(key[16:], "big"))


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    body = msgspec.msgpack.encode(checkpoint)
    return _CHECKPOINT.pack(_CHECKPOINT_MAGIC, CHECKPOINT_VERSION, crc32c(body)) + body


def decode_checkpoint(data: bytes, path: str) -> Checkpoint | None:
    if len(data) < _CHECKPOINT.size:
        return None
    magic, version, crc = _CHECKPOINT.unpack_from(data)
    if magic != _CHECKPOINT_MAGIC:
        return None
    refuse_newer(version, CHECKPOINT_VERSION, path)
    body = data[_CHECKPOINT.size :]
    if crc32c(body) != crc:
        return None
    return msgspec.msgpack.decode(body, type=Checkpoint)


def encode_state(state: LogState) -> bytes:
    return msgspec.msgpack.encode(state)


def decode_state(data: bytes) -> LogState:
    return msgspec.msgpack.decode(data, type=LogState)


def dir_name(tp: TopicPartition) -> str:
    """Topic names never become paths."""
    return f"{tp.topic_id.hex}-{tp.partition}"


def parse_dir_name(name: str) -> TopicPartition | None:
    topic, _, partition = name.partition("-")
    try:
        if len(topic) != 32 or not partition.isdecimal() or str(int(partition)) != partition:
            return None
        return TopicPartition(UUID(hex=topic), int(partition))
    except ValueError:
        return None


def log_name(base: int) -> str:
    return f"{base:020d}.log"


def index_name(base: int) -> str:
    return f"{base:020d}.index"


def parse_log_name(name: str) -> int | None:
    stem, dot, kind = name.partition(".")
    return int(stem) if dot and kind == "log" and len(stem) == 20 and stem.isdecimal() else None
