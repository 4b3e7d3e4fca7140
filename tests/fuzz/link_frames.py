"""Bytes of a link between two of our processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from uuid import UUID

from fuzz_seeds import drawn, of_union
from hypothesis import strategies as st

from millrace.model import feed_messages, messages
from millrace.wire import feeds, links, proof, records
from millrace.wire.framing import FrameSplitter

FRAME_BYTES_MAX = 1 << 20
KEY, NONCE = bytes(32), bytes(proof.NONCE_BYTES)
HERE, THERE = proof.Side(UUID(int=1), 1, 1), proof.Side(UUID(int=1), 2, 1)


def run(data: bytes) -> None:
    """A connection's bytes in pieces: the first byte says how many at a time."""
    if not data:
        return
    step, splitter, at = data[0] + 1, FrameSplitter(FRAME_BYTES_MAX), 1
    sides = (acceptor(), dialler())
    while at < len(data):
        buffer = splitter.get_buffer()
        size = min(step, len(buffer), len(data) - at)
        buffer[:size] = data[at:at + size]
        at += size
        for frame in splitter.filled(size):
            kind, number, body = links.decode_header(frame)
            if kind == links.PROOF:
                sides[number & 1].receive(body)
            else:
                _link_body(kind, body)


def acceptor() -> proof.Acceptor:
    return proof.Acceptor(KEY, "broker", HERE, NONCE)


def dialler() -> proof.Dialler:
    made = proof.Dialler(KEY, "broker", THERE, NONCE)
    made.opening()
    return made


def _proof_seed() -> bytes:
    """All four messages of a proof, each for the side that reads it."""
    one, other = proof.Dialler(KEY, "broker", THERE, NONCE), acceptor()
    opening = one.opening()
    challenge = other.receive(opening)
    answer = one.receive(challenge)
    welcome = other.receive(answer)
    told = ((0, opening), (1, challenge), (0, answer), (1, welcome))
    return b"".join(_joined(links.frame(links.PROOF, side, [message])) for side, message in told)


def _link_body(kind: int, body: memoryview) -> None:
    by_kind: dict[int, Callable[[memoryview], object]] = {
        links.HELLO: links.decode_message, links.REQUEST: links.decode_message, links.REPLY: links.decode_message,
        links.ERROR: links.decode_message, links.ATTACH: links.decode_attach, links.FETCH: links.decode_fetch,
        links.DETACH: links.decode_detach, links.FEEDS: feeds.decode}
    if kind == links.DATA:
        for entry in links.decode_data(body):
            if entry.data:
                records.parse_batches(entry.data)
    elif kind in by_kind:
        by_kind[kind](body)


def seeds() -> Iterator[bytes]:
    batch = bytes(records.build_batch([records.Record(b"v")]))
    attach = drawn(st.builds(links.Attach, *[st.integers(0, 9), st.uuids(), *[st.integers(0, 9)] * 4]), 3)
    streams = {
        links.ATTACH: links.encode_attach(attach),
        links.FETCH: links.encode_fetch([links.Fetch(1, 2, 3, 4)]),
        links.DATA: links.encode_data_entry(1, 0, 3, 5, 1, (-1, -1), len(batch)) + batch,
        links.DETACH: links.encode_detach([1, 2]), links.PING: b"", links.PONG: b""}
    yield b"\xff" + _proof_seed()
    for kind, body in streams.items():
        yield b"\xff" + _joined(links.frame(kind, 1, [body]))
    for frame in of_union(messages.AnyMessage, lambda one: _joined(links.encode_message(links.REQUEST, 1, one))):
        yield b"\xff" + frame
    for body in of_union(feed_messages.FeedMessages, feeds.encode):
        yield b"\xff" + _joined(links.frame(links.FEEDS, 0, [body]))


def _joined(chunks: Iterable[links.Chunk]) -> bytes:
    return b"".join(map(bytes, chunks))
