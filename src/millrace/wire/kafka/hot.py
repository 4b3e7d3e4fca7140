"""What every produced and fetched batch passes, written by hand: request header, Produce, Fetch and their answers.

In: a frame as a memoryview. Out: tuples whose names are bytes and whose records are slices of that frame (no copy, so
valid only as long as the frame); answers as whole frames, Fetch as chunks between which the records stand untouched.
Promise: Malformed is the only error; work is bounded by the size of the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from millrace.errors import Malformed
from millrace.limits import REQUEST_ENTRIES_MAX
from millrace.wire.kafka.apis import FLEXIBLE_FROM, skip_tags
from millrace.wire.primitives import read_uvarint, uvarint

_I16, _I32, _U32 = Struct(">h"), Struct(">i"), Struct(">I")
_HEAD = Struct(">hhih")
_ACKS = Struct(">hi")
_ENTRY = Struct(">ii")            # partition, size of its records

PRODUCE_FLEXIBLE, PRODUCE_IDS = 9, 13
FETCH_FLEXIBLE, FETCH_IDS = 12, 13

Name = bytes                       # of a topic, or its 16-byte id in versions that speak of ids


class Header(NamedTuple):
    key: int
    version: int
    correlation: int
    client_id: bytes
    body: int                      # where the body begins


class Produce(NamedTuple):
    acks: int
    timeout_ms: int
    transactional_id: bytes | None
    topics: list[tuple[Name, list[tuple[int, memoryview | None]]]]


class FetchEntry(NamedTuple):
    partition: int
    leader_epoch: int
    offset: int
    bytes_max: int


class Fetch(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    topics: list[tuple[Name, list[FetchEntry]]]


class Leader(NamedTuple):
    """Sent along with "not leader": the client need not ask for metadata."""

    node_id: int
    epoch: int
    host: str
    port: int


class Produced(NamedTuple):
    """The outcome of one partition of a Produce."""

    partition: int
    error: int = 0
    base_offset: int = -1
    log_start: int = -1
    message: str | None = None
    leader: Leader | None = None


class Fetched(NamedTuple):
    """The outcome of one partition of a Fetch."""

    partition: int
    error: int = 0
    hw: int = -1
    log_start: int = -1
    records: bytes | bytearray | memoryview = b""
    leader: Leader | None = None


def parse_header(frame: memoryview) -> Header:
    try:
        key, version, correlation, size = _HEAD.unpack_from(frame)
    except StructError as error:
        raise Malformed("request header") from error
    at: int = _HEAD.size
    client_id = b""
    if size > 0:
        client_id = bytes(frame[at : at + size])
        at += size
        if at > len(frame):
            raise Malformed("client id behind the end")
    elif size < -1:
        raise Malformed("client id of negative size")
    if version >= FLEXIBLE_FROM.get(key, 1 << 15):
        at = skip_tags(frame, at, len(frame))
    return Header(key, version, correlation, client_id, at)


# -- Produce -------------------------------------------------------------------------------------------------------


def parse_produce(frame: memoryview, at: int, version: int) -> Produce:
    try:
        if version >= PRODUCE_FLEXIBLE:
            return _produce_flexible(frame, at, ids=version >= PRODUCE_IDS)
        return _produce_classic(frame, at)
    except (StructError, IndexError) as error:
        raise Malformed("Produce ends too early") from error


def _produce_classic(frame: memoryview, at: int) -> Produce:
    end = len(frame)
    transactional, at = _short(frame, at, end)
    acks, timeout_ms = _ACKS.unpack_from(frame, at)
    topic_count, at = _count(frame, at + 6, end, REQUEST_ENTRIES_MAX)
    budget = REQUEST_ENTRIES_MAX
    topics: list[tuple[Name, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        name, at = _short(frame, at, end)
        count, at = _count(frame, at, end, budget)
        budget -= count
        entries: list[tuple[int, memoryview | None]] = []
        for _ in range(count):
            index, size = _ENTRY.unpack_from(frame, at)
            at += 8
            if size < 0:
                if size != -1:
                    raise Malformed("records of negative size")
                entries.append((index, None))
                continue
            stop = at + size
            if stop > end:
                raise Malformed("records behind the end")
            entries.append((index, frame[at:stop]))
            at = stop
        topics.append((name or b"", entries))
    _at_end(at, end)
    return Produce(acks, timeout_ms, transactional, topics)


def _produce_flexible(frame: memoryview, at: int, *, ids: bool) -> Produce:
    end = len(frame)
    transactional, at = _compact(frame, at, end)
    acks, timeout_ms = _ACKS.unpack_from(frame, at)
    topic_count, at = _compact_count(frame, at + 6, end, REQUEST_ENTRIES_MAX)
    budget = REQUEST_ENTRIES_MAX
    topics: list[tuple[Name, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        name, at = (bytes(frame[at : at + 16]), at + 16) if ids else _compact(frame, at, end)
        count, at = _compact_count(frame, at, end, budget)
        budget -= count
        entries: list[tuple[int, memoryview | None]] = []
        for _ in range(count):
            (index,) = _I32.unpack_from(frame, at)
            size, at = read_uvarint(frame, at + 4, end)
            if size == 0:
                entries.append((index, None))
            else:
                stop = at + size - 1
                if stop > end:
                    raise Malformed("records behind the end")
                entries.append((index, frame[at:stop]))
                at = stop
            at = at + 1 if frame[at] == 0 else skip_tags(frame, at, end)
        topics.append((name or b"", entries))
        at = at + 1 if frame[at] == 0 else skip_tags(frame, at, end)
    _at_end(skip_tags(frame, at, end), end)
    return Produce(acks, timeout_ms, transactional, topics)


_PRODUCED = {3: Struct(">ihqq"), 5: Struct(">ihqqq")}  # partition, error, base offset, append time [, log start]
_CLASSIC_NOTHING = b"\0\0\0\0\xff\xff"   # no record errors, no message
_FLEXIBLE_NOTHING = b"\1\0\0"            # the same, and no tags


def produce_response(
    version: int, correlation: int, topics: Sequence[tuple[Name, Sequence[Produced]]]
) -> bytes:
    flexible = version >= PRODUCE_FLEXIBLE
    out = bytearray(8)
    if flexible:
        out += b"\0"
    out += uvarint(len(topics) + 1) if flexible else _I32.pack(len(topics))
    leaders: dict[int, Leader] = {}
    for name, entries in topics:
        _name(out, name, flexible=flexible, ids=version >= PRODUCE_IDS)
        out += uvarint(len(entries) + 1) if flexible else _I32.pack(len(entries))
        for entry in entries:
            _produced(out, version, entry)
            if entry.leader is not None:
                leaders[entry.leader.node_id] = entry.leader
        if flexible:
            out += b"\0"
    out += b"\0\0\0\0"
    if flexible:
        _endpoints(out, leaders if version >= 10 else {})
    _U32.pack_into(out, 0, len(out) - 4)
    _I32.pack_into(out, 4, correlation)
    return bytes(out)


def _produced(out: bytearray, version: int, entry: Produced) -> None:
    if version >= 5:
        out += _PRODUCED[5].pack(entry.partition, entry.error, entry.base_offset, -1, entry.log_start)
    else:
        out += _PRODUCED[3].pack(entry.partition, entry.error, entry.base_offset, -1)
    if version < 8:
        return
    if entry.message is None and entry.leader is None:
        out += _FLEXIBLE_NOTHING if version >= PRODUCE_FLEXIBLE else _CLASSIC_NOTHING
        return
    message = None if entry.message is None else entry.message.encode()
    if version < PRODUCE_FLEXIBLE:
        out += b"\0\0\0\0" + (b"\xff\xff" if message is None else _I16.pack(len(message)) + message)
        return
    out += b"\1" + (b"\0" if message is None else uvarint(len(message) + 1) + message)
    if entry.leader is None or version < 10:
        out += b"\0"
    else:
        out += b"\1\0\x09" + _ENTRY.pack(entry.leader.node_id, entry.leader.epoch) + b"\0"


# -- Fetch ---------------------------------------------------------------------------------------------------------

# By version: [replica,] max wait, min bytes, max bytes, isolation [, session id, session epoch]
_FETCH = {
    4: Struct(">iiiib"), 7: Struct(">iiiibii"), 15: Struct(">iiibii"),
}
# By version: partition, [leader epoch,] offset, [last epoch,] [log start,] max bytes
_FETCH_ENTRY = {
    4: Struct(">iqi"), 5: Struct(">iqqi"), 9: Struct(">iiqqi"), 12: Struct(">iiqiqi"),
}


def parse_fetch(frame: memoryview, at: int, version: int) -> Fetch:
    """Session fields are -1/0 before version 7, the leader epoch is -1 before version 9."""
    try:
        return _fetch(frame, at, version)
    except (StructError, IndexError) as error:
        raise Malformed("Fetch ends too early") from error


def _fetch(frame: memoryview, at: int, version: int) -> Fetch:
    end = len(frame)
    flexible = version >= FETCH_FLEXIBLE
    form = _FETCH[15 if version >= 15 else 7 if version >= 7 else 4]
    fields = form.unpack_from(frame, at)
    at += form.size
    if version < 15:
        fields = fields[1:]         # the replica id: our followers fetch on links, not here
    counted = _compact_count if flexible else _count
    topic_count, at = counted(frame, at, end, REQUEST_ENTRIES_MAX)
    budget = REQUEST_ENTRIES_MAX
    topics: list[tuple[Name, list[FetchEntry]]] = []
    for _ in range(topic_count):
        if version >= FETCH_IDS:
            name, at = bytes(frame[at : at + 16]), at + 16
        else:
            found, at = _compact(frame, at, end) if flexible else _short(frame, at, end)
            name = found or b""
        count, at = counted(frame, at, end, budget)
        budget -= count
        entries, at = _fetch_entries(frame, at, version, count)
        topics.append((name, entries))
        if flexible:
            at = skip_tags(frame, at, end)
    _at_end(_fetch_rest(frame, at, version), end)
    session_id, session_epoch = (fields[4], fields[5]) if version >= 7 else (0, -1)
    return Fetch(fields[0], fields[1], fields[2], session_id, session_epoch, topics)


def _fetch_entries(frame: memoryview, at: int, version: int, count: int) -> tuple[list[FetchEntry], int]:
    entries: list[FetchEntry] = []
    add = entries.append
    if version >= FETCH_FLEXIBLE:
        unpack, end = _FETCH_ENTRY[12].unpack_from, len(frame)
        for _ in range(count):
            partition, epoch, offset, _, _, bytes_max = unpack(frame, at)
            at += 32
            at = at + 1 if frame[at] == 0 else skip_tags(frame, at, end)
            add(FetchEntry(partition, epoch, offset, bytes_max))
        return entries, at
    form = _FETCH_ENTRY[9 if version >= 9 else 5 if version >= 5 else 4]
    for _ in range(count):
        fields = form.unpack_from(frame, at)
        at += form.size
        if version >= 9:
            add(FetchEntry(fields[0], fields[1], fields[2], fields[4]))
        else:
            add(FetchEntry(fields[0], -1, fields[1], fields[-1]))
    return entries, at


def _fetch_rest(frame: memoryview, at: int, version: int) -> int:
    """Forgotten topics, rack and tags: read over, since every session is a full one."""
    end = len(frame)
    flexible = version >= FETCH_FLEXIBLE
    if version >= 7:
        counted = _compact_count if flexible else _count
        topic_count, at = counted(frame, at, end, REQUEST_ENTRIES_MAX)
        for _ in range(topic_count):
            if version >= FETCH_IDS:
                at += 16
            else:
                _, at = _compact(frame, at, end) if flexible else _short(frame, at, end)
            count, at = counted(frame, at, end, REQUEST_ENTRIES_MAX)
            at += 4 * count
            if flexible:
                at = skip_tags(frame, at, end)
    if version >= 11:
        _, at = _compact(frame, at, end) if flexible else _short(frame, at, end)
    return skip_tags(frame, at, end) if flexible else at


# By version: partition, error, hw, last stable [, log start], no aborted transactions [, read from the leader]
_FETCHED_4, _FETCHED_5, _FETCHED_11 = Struct(">ihqqi"), Struct(">ihqqqi"), Struct(">ihqqqii")
_FETCHED_12 = Struct(">ihqqqbi")
Chunk = bytes | bytearray | memoryview


def fetch_response(
    version: int, correlation: int, topics: Sequence[tuple[Name, Sequence[Fetched]]], *, error: int = 0
) -> list[Chunk]:
    """One frame in chunks; records are chunks of their own. There are no transactions: all below HW is stable."""
    flexible = version >= FETCH_FLEXIBLE
    out = bytearray(8)
    if flexible:
        out += b"\0"
    out += b"\0\0\0\0"
    if version >= 7:
        out += _I16.pack(error) + b"\0\0\0\0"          # session 0: ask for everything again
    out += uvarint(len(topics) + 1) if flexible else _I32.pack(len(topics))
    chunks: list[Chunk] = [out]
    leaders: dict[int, Leader] = {}
    for name, entries in topics:
        _name(out, name, flexible=flexible, ids=version >= FETCH_IDS)
        out += uvarint(len(entries) + 1) if flexible else _I32.pack(len(entries))
        for entry in entries:
            _fetched(out, version, entry)
            if entry.records:
                out = bytearray()
                chunks += (entry.records, out)
            if flexible:
                _fetched_tags(out, entry.leader)
            if entry.leader is not None:
                leaders[entry.leader.node_id] = entry.leader
        if flexible:
            out += b"\0"
    if flexible:
        _endpoints(out, leaders if version >= 16 else {})
    first = chunks[0]
    assert type(first) is bytearray
    _U32.pack_into(first, 0, sum(map(len, chunks)) - 4)
    _I32.pack_into(first, 4, correlation)
    return chunks


def _fetched(out: bytearray, version: int, entry: Fetched) -> None:
    partition, error, hw, log_start, records, _ = entry
    if version >= FETCH_FLEXIBLE:
        out += _FETCHED_12.pack(partition, error, hw, hw, log_start, 1, -1)
        out += uvarint(len(records) + 1)
        return
    if version >= 11:
        out += _FETCHED_11.pack(partition, error, hw, hw, log_start, 0, -1)
    elif version >= 5:
        out += _FETCHED_5.pack(partition, error, hw, hw, log_start, 0)
    else:
        out += _FETCHED_4.pack(partition, error, hw, hw, 0)
    out += _I32.pack(len(records))


def _fetched_tags(out: bytearray, leader: Leader | None) -> None:
    if leader is None:
        out += b"\0"
    else:
        out += b"\1\1\x09" + _ENTRY.pack(leader.node_id, leader.epoch) + b"\0"


# -- shared --------------------------------------------------------------------------------------------------------


def _endpoints(out: bytearray, leaders: dict[int, Leader]) -> None:
    if not leaders:
        out += b"\0"
        return
    body = bytearray(uvarint(len(leaders) + 1))
    for leader in leaders.values():
        host = leader.host.encode()
        body += _I32.pack(leader.node_id) + uvarint(len(host) + 1) + host + _I32.pack(leader.port) + b"\0\0"
    out += b"\1\0" + uvarint(len(body)) + body


def _name(out: bytearray, name: Name, *, flexible: bool, ids: bool) -> None:
    if not ids:
        out += uvarint(len(name) + 1) if flexible else _I16.pack(len(name))
    out += name


def _short(frame: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    (size,) = _I16.unpack_from(frame, at)
    at += 2
    if size < 0:
        if size != -1:
            raise Malformed("string of negative size")
        return None, at
    if size > end - at:
        raise Malformed("string behind the end")
    return bytes(frame[at : at + size]), at + size


def _compact(frame: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_uvarint(frame, at, end)
    if size == 0:
        return None, at
    stop = at + size - 1
    if stop > end:
        raise Malformed("string behind the end")
    return bytes(frame[at:stop]), stop


def _count(frame: memoryview, at: int, end: int, budget: int) -> tuple[int, int]:
    (count,) = _I32.unpack_from(frame, at)
    at += 4
    if not 0 <= count <= end - at or count > budget:
        raise Malformed(f"array of {count} entries, {end - at} bytes left")
    return count, at


def _compact_count(frame: memoryview, at: int, end: int, budget: int) -> tuple[int, int]:
    size, at = read_uvarint(frame, at, end)
    count = size - 1
    if not 0 <= count <= end - at or count > budget:
        raise Malformed(f"array of {count} entries, {end - at} bytes left")
    return count, at


def _at_end(at: int, end: int) -> None:
    if at != end:
        raise Malformed(f"{end - at} bytes behind the message")
