"""The copy stream of a replication connection, in chunks of whole messages.

In: START_REPLICATION on a psycopg connection. Out: chunks (at most about 1 MiB, or 20 ms after their first message; a
commit after a pause at once), each with what the last keep-alive said.

Promises: nothing is read while nobody asks for a chunk, so a slow log slows the server down and memory stays bounded;
feedback leaves on its own timer all the same [S2]; a stream that falls silent is asked, then given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from time import time
from typing import Any, NamedTuple

import psycopg
from psycopg.pq.abc import PGconn

from millrace import limits
from millrace.errors import Malformed, TimedOut
from millrace.model.tables import Lsn, lsn_text
from millrace.wire.pg.chunks import Chunk, join

_DATA, _KEEPALIVE = ord("w"), ord("k")
_KEEPALIVE_BODY = Struct(">QQB")     # WAL end, clock, reply asked for
_FEEDBACK = Struct(">cQQQQB")        # 'r', written, flushed, applied, clock, reply asked for
_EPOCH_2000_S = 946_684_800
_MESSAGE_AT = 25                     # behind 'w', WAL start, WAL end, clock
_COMMITS = b"Cc"                     # of a transaction, of a streamed one
_SMALL_BYTES = 32 * limits.KIB       # a chunk like this comes of little load, not of a busy reader
_READ_ON_BYTES = 8 * limits.KIB      # libpq takes about 16 KiB at once: less means that the socket is empty


Notice = Callable[[str, str], BaseException | None]  # severity, text; what it returns ends the stream


class Piece(NamedTuple):
    """What the stream gave at once."""

    chunk: Chunk
    keepalive: Lsn                   # WAL end of a keep-alive behind the last message; 0: none there


class Stream:
    """One START_REPLICATION. Lives as long as its connection; used by one task at a time."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], *, started: Lsn, on_notice: Notice) -> None:
        self._connection = connection
        self._pgconn: PGconn = connection.pgconn
        self._fd = self._pgconn.socket       # a connection that is lost does not tell it any more
        self._loop = asyncio.get_running_loop()
        self._frames: list[memoryview] = []
        self._bytes = 0
        self._keepalive: Lsn = 0
        self._waiting: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._acknowledged: Lsn = started
        self._heard_at = self._loop.time()
        self._handed_at = float("-inf")      # the last chunk with messages, and its size
        self._handed_bytes = 0
        self._feedback: asyncio.Task[None] | None = None
        self._on_notice = on_notice
        self.received_bytes = 0

    @classmethod
    async def open(
        cls, connection: psycopg.AsyncConnection[Any], *, slot: str, publication: str, start: Lsn,
        on_notice: Notice = lambda severity, text: None,
    ) -> Stream:
        """The connection must be one of `replication=database`, in autocommit. It is the stream's from now on."""
        version = connection.info.server_version
        options = {
            "proto_version": "4" if version >= 160_000 else "2",
            "publication_names": _quoted_name(publication),
            "messages": "true",
            "streaming": "on",
        }
        listed = ", ".join(f"{name} {_literal(value)}" for name, value in options.items())
        stream = cls(connection, started=start, on_notice=on_notice)
        connection.add_notice_handler(stream._notice)
        # Ours answers every 5 s; a shorter time-out of the server would cut us off while a huge row is on its way.
        await connection.execute("SET wal_sender_timeout = '60s'")
        command = f"START_REPLICATION SLOT {_quoted_name(slot)} LOGICAL {lsn_text(start)} ({listed})"
        await connection.execute(command.encode())
        stream._pgconn.nonblocking = 1
        stream._feedback = asyncio.create_task(stream._send_feedback(), name=f"feedback {slot}")
        return stream

    async def close(self) -> None:
        if self._feedback is not None:
            self._feedback.cancel()
            await asyncio.gather(self._feedback, return_exceptions=True)
        await self._connection.close()

    # -- in ------------------------------------------------------------------------------------------------------

    async def read(self) -> Piece:
        """The next messages, perhaps none but a keep-alive. Raises psycopg's errors when the server ends the stream,
        TimedOut when it falls silent."""
        if self._error is None:
            self._drain()            # what libpq took from the socket last time raises no readiness any more
        if self._error is None and self._bytes < limits.CHUNK_BYTES:
            await self._gather()
        if self._error is not None:
            raise self._error
        frames, self._frames = self._frames, []
        if frames:
            self._handed_at, self._handed_bytes = self._loop.time(), self._bytes
        self._bytes = 0
        keepalive, self._keepalive = self._keepalive, 0
        return Piece(join(frames), keepalive)

    async def _gather(self) -> None:
        self._waiting = waiting = self._loop.create_future()
        self._heard_at = self._loop.time()     # before, nobody listened
        timer: asyncio.TimerHandle | None = None
        if self._frames or self._keepalive:
            wait_s = 0.0 if self._is_whole_after_pause() else limits.CHUNK_WAIT_S      # not before the socket's turn
            timer = self._loop.call_later(wait_s, self._wake)
        self._loop.add_reader(self._fd, self._on_readable)
        try:
            while not waiting.done():
                await self._wait(waiting)
        finally:
            self._loop.remove_reader(self._fd)
            self._waiting = None
            if timer is not None:
                timer.cancel()

    async def _wait(self, waiting: asyncio.Future[None]) -> None:
        done, _ = await asyncio.wait([waiting], timeout=limits.STREAM_ASK_S)
        if done:
            return
        silence_s = self._loop.time() - self._heard_at
        if silence_s > limits.STREAM_SILENCE_S:
            raise TimedOut(f"the server has sent nothing for {silence_s:.0f} s, not even an answer to a status message")
        self._send(ask=True)

    def _on_readable(self) -> None:
        was_empty = not self._frames and not self._keepalive
        self._heard_at = self._loop.time()     # a part of a huge message counts
        try:
            while True:
                before = self._bytes
                self._pgconn.consume_input()
                self._drain()
                if self._bytes >= limits.CHUNK_BYTES:
                    self._wake()
                    return
                if self._bytes - before < _READ_ON_BYTES:
                    break
        except Exception as error:   # the waiting task raises it
            self._error = error
            self._wake()
            return
        if self._is_whole_after_pause():
            self._wake()
        elif was_empty and (self._frames or self._keepalive):
            self._loop.call_later(limits.CHUNK_WAIT_S, self._wake, self._waiting)

    def _is_whole_after_pause(self) -> bool:
        """Waiting would only delay it: who commits so little, so rarely, does not fill a chunk."""
        return (bool(self._frames) and self._frames[-1][_MESSAGE_AT] in _COMMITS
                and self._handed_bytes < _SMALL_BYTES
                and self._loop.time() - self._handed_at >= limits.CHUNK_WAIT_S)

    def _wake(self, which: asyncio.Future[None] | None = None) -> None:
        if which is not None and which is not self._waiting:
            return                   # a timer of an earlier chunk
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _drain(self) -> None:
        """Takes whole messages that libpq holds, at most a chunk of them."""
        get, frames, size = self._pgconn.get_copy_data, self._frames, self._bytes
        while size < limits.CHUNK_BYTES:
            length, data = get(1)
            if length <= 0:
                if length < 0:
                    self._ended()
                break
            if length <= (_MESSAGE_AT if data[0] == _DATA else _KEEPALIVE_BODY.size):
                raise Malformed(f"a message of the stream of {length} bytes")
            if data[0] == _DATA:
                frames.append(data)
                size += length
                self._keepalive = 0
            elif data[0] == _KEEPALIVE:
                self._on_keepalive(data)
        self.received_bytes += size - self._bytes
        self._bytes = size

    def _on_keepalive(self, data: memoryview) -> None:
        wal_end, _, asked = _KEEPALIVE_BODY.unpack_from(data, 1)
        self._keepalive = wal_end
        if asked:
            self._send()

    def _ended(self) -> None:
        result = self._pgconn.get_result()
        text = result.get_error_message() if result is not None else ""
        raise psycopg.OperationalError(f"the server ended the stream: {text or 'without a reason'}")

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        """Heard in its place between the messages: none behind it is handed out if it ends the stream."""
        error = self._on_notice(diagnostic.severity_nonlocalized or "", diagnostic.message_primary or "")
        if error is not None:
            self._error = self._error or error
            self._wake()

    # -- out -----------------------------------------------------------------------------------------------------

    def acknowledge(self, lsn: Lsn) -> None:
        """All up to `lsn` is durable in the log; the server may forget it. Told at once: WAL is kept until then."""
        if lsn > self._acknowledged:
            self._acknowledged = lsn
            self._send()

    async def _send_feedback(self) -> None:
        while True:
            await asyncio.sleep(limits.FEEDBACK_S)
            self._send()

    def _send(self, *, ask: bool = False) -> None:
        lsn = self._acknowledged
        clock_us = int((time() - _EPOCH_2000_S) * 1_000_000)
        try:
            # Never blocks: a full socket keeps the frame in libpq's buffer for the next flush.
            self._pgconn.put_copy_data(_FEEDBACK.pack(b"r", lsn, lsn, lsn, clock_us, ask))
            self._pgconn.flush()
        except psycopg.Error as error:
            self._error = self._error or error
            self._wake()


def _quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
