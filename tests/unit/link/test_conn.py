"""One connection between its transport and its owner: what waits, what is cut off, what a failing handler costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from millrace import limits
from millrace.errors import Malformed
from millrace.link.conn import FrameConn


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent, self.calls = b"", list[str]()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def writelines(self, chunks: Iterable[Any]) -> None:
        self.sent += b"".join(map(bytes, chunks))

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


def run(story: Callable[[FrameConn, Transport], Awaitable[None]], on_frame: Any = lambda conn, frame: None) -> None:
    async def main() -> None:
        conn, transport = FrameConn(on_frame, frame_bytes_max=1000), Transport()
        conn.connection_made(transport)
        await story(conn, transport)

    asyncio.run(main())


def feed(conn: FrameConn, data: bytes) -> None:
    buffer = conn.get_buffer(-1)
    buffer[:len(data)] = data
    conn.buffer_updated(len(data))


def test_L25_a_connection_that_is_paused_twice_reads_on_when_both_are_over() -> None:
    async def story(conn: FrameConn, transport: Transport) -> None:
        conn.pause_reading("one")
        conn.pause_reading("other")
        conn.resume_reading("one")
        conn.resume_reading("one")
        assert transport.calls == ["pause"]
        conn.resume_reading("other")
        assert transport.calls == ["pause", "resume"]

    run(story)


def test_L25_what_is_queued_leaves_before_a_connection_is_closed() -> None:
    async def story(conn: FrameConn, transport: Transport) -> None:
        conn.write([b"last", b" word"])
        conn.close()
        assert (transport.sent, transport.calls) == (b"last word", ["close"])

    run(story)


def test_L25_while_the_peer_does_not_read_what_waits_is_counted_here() -> None:
    async def story(conn: FrameConn, transport: Transport) -> None:
        conn.pause_writing()
        conn.write([b"waits"])
        await asyncio.sleep(0)
        assert (transport.sent, conn.queued_bytes) == (b"", 5)
        conn.resume_writing()
        assert (transport.sent, conn.queued_bytes) == (b"waits", 0)

    run(story)


@pytest.mark.parametrize("error", [Malformed("not a frame"), ZeroDivisionError("ours")])
def test_L25_a_frame_that_cannot_be_handled_ends_its_connection(error: Exception) -> None:
    def fails(conn: FrameConn, frame: memoryview) -> None:
        raise error

    async def story(conn: FrameConn, transport: Transport) -> None:
        feed(conn, b"\0\0\0\1x")
        assert transport.calls == ["abort"]
        assert conn.closed

    run(story, fails)


def test_L25_peers_are_cut_off_for_what_they_do_not_do() -> None:
    async def story(conn: FrameConn, transport: Transport) -> None:
        now = conn.opened_at
        assert conn.overdue(now + limits.PEER_FIRST_BYTE_S - 0.1) == ""
        assert conn.overdue(now + limits.PEER_FIRST_BYTE_S + 0.1) == "said nothing"
        feed(conn, b"\0\0\0\5ab")
        since = conn.frame_since
        assert conn.overdue(since + limits.PEER_FRAME_S - 0.1) == ""
        assert conn.overdue(since + limits.PEER_FRAME_S + 0.1) == "a frame that does not end"
        feed(conn, b"cde")
        assert conn.frame_since == 0.0
        conn.pause_writing()
        assert conn.overdue(conn.drain_since + limits.PEER_DRAIN_S - 0.1) == ""
        assert conn.overdue(conn.drain_since + limits.PEER_DRAIN_S + 0.1) == "does not read its answers"
        conn.resume_writing()
        assert conn.overdue(conn.heard_at + limits.PEER_IDLE_S + 0.1) == "idle"

    run(story)
