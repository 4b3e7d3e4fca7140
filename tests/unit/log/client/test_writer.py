"""A writer between its appends and the answers of brokers, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace.errors import (
    InvalidProducerEpoch,
    InvalidRequest,
    MillraceError,
    NotEnoughReplicas,
    OutOfOrderSequence,
    TimedOut,
    Unreachable,
)
from millrace.log.client.inflight import Batch
from millrace.log.client.writer import Writer
from millrace.ops.real import RealRandom
from millrace.wire.kafka.hot import Produced
from millrace.wire.records import Record

ROUTE = "route"


class Home:
    """Notes what the writer asks for."""

    def __init__(self) -> None:
        self.doubts = 0
        self.delays_s: list[float] = []
        self.over: list[Writer] = []

    def kick(self, writer: Writer) -> None:
        pass

    def kick_later(self, writer: Writer, delay_s: float) -> None:
        self.delays_s.append(delay_s)

    def doubt(self) -> None:
        self.doubts += 1

    def ended(self, writer: Writer) -> None:
        self.over.append(writer)


def run(program: Callable[[Home, Writer], Awaitable[None]], *, deadline_s: float = 30.0) -> None:
    async def main() -> None:
        home = Home()
        await program(home, Writer(
            home, ("t", 0), writer_id=1, epoch=1, sequence=0, deadline_s=deadline_s, random=RealRandom(),
            wall=lambda: 1e9,
        ))

    asyncio.run(main())


def taken(writer: Writer) -> list[Batch]:
    found = []
    while (batch := writer.take(ROUTE)) is not None:
        found.append(batch)
    return found


def append_apart(writer: Writer, count: int) -> tuple[list[asyncio.Future[int]], list[Batch]]:
    """Each in a batch of its own, the first acknowledged before."""
    assert not taken(writer)
    futures, batches = [], []
    for _ in range(count):
        futures.append(writer.append([Record(b"v")]))
        batches += taken(writer)
    return futures, batches


async def known(writer: Writer) -> None:
    future = writer.append([Record(b"first")])
    (batch,) = taken(writer)
    writer.answered(batch, batch.attempt, Produced(0, 0, 0))
    assert await future == 0


def test_L22_a_gap_behind_a_failure_is_not_the_writers_end() -> None:
    async def program(home: Home, writer: Writer) -> None:
        await known(writer)
        futures, batches = append_apart(writer, 3)
        writer.answered(batches[0], 1, Produced(0, NotEnoughReplicas.kafka_code))
        for batch in batches[1:]:
            writer.answered(batch, 1, Produced(0, OutOfOrderSequence.kafka_code))
        assert writer.error is None
        assert taken(writer) == []                       # backing off
        assert len(home.delays_s) == 1
        assert home.doubts == 3
        writer.back_off_over()
        assert taken(writer) == batches[:1]
        writer.answered(batches[0], 2, Produced(0, 0, 10))
        assert taken(writer) == batches[1:]
        for at, batch in enumerate(batches[1:], 11):
            writer.answered(batch, 2, Produced(0, 0, at))
        assert [await future for future in futures] == [10, 11, 12]
        await writer.flush()

    run(program)


def test_small_appends_share_a_batch_and_get_their_own_offsets() -> None:
    async def program(home: Home, writer: Writer) -> None:
        futures = [writer.append([Record(b"v")] * size) for size in (1, 3, 2)]
        (batch,) = taken(writer)
        assert batch.count == 6
        writer.answered(batch, 1, Produced(0, 0, 100))
        assert [await future for future in futures] == [100, 101, 104]
        assert writer.pending_bytes == 0
        with pytest.raises(InvalidRequest):
            writer.append([])

    run(program)


def test_L28_a_fenced_writer_fails_everything_that_waits() -> None:
    async def program(home: Home, writer: Writer) -> None:
        await known(writer)
        futures, batches = append_apart(writer, 7)
        assert len(batches) == 5
        writer.answered(batches[0], 1, Produced(0, InvalidProducerEpoch.kafka_code, message="fenced"))
        for future in [*futures, writer.append([Record(b"later")])]:
            with pytest.raises(InvalidProducerEpoch, match="fenced"):
                await future
        assert home.over == [writer]
        assert taken(writer) == []
        assert writer.pending_bytes == 0

    run(program)


@pytest.mark.parametrize(("last", "kind"), [(Unreachable("silence"), Unreachable), (NotEnoughReplicas("1"), TimedOut)])
def test_L22_without_progress_until_the_deadline_a_typed_error_with_its_cause(
    last: MillraceError, kind: type[MillraceError]
) -> None:
    async def program(home: Home, writer: Writer) -> None:
        future = writer.append([Record(b"v")])
        (batch,) = taken(writer)
        now = asyncio.get_running_loop().time()
        writer.answered(batch, 1, last)
        writer.tick(now + 1)
        assert not future.done()
        writer.tick(now + 31)
        with pytest.raises(kind) as caught:
            await future
        assert type(caught.value) is kind
        assert caught.value.__cause__ is last

    run(program)


def test_back_off_grows_with_jitter_and_ends_with_a_success() -> None:
    async def program(home: Home, writer: Writer) -> None:
        writer.append([Record(b"v")])
        for attempt in range(1, 12):
            (batch,) = taken(writer)
            writer.answered(batch, attempt, Unreachable("silence"))
            writer.back_off_over()
        assert len(set(home.delays_s)) == len(home.delays_s)
        assert 0.01 <= home.delays_s[0] <= 0.02
        assert 0.5 <= home.delays_s[-1] <= 1.0
        (batch,) = taken(writer)
        writer.answered(batch, 12, Produced(0, 0, 1))
        writer.append([Record(b"v")])
        (batch,) = taken(writer)
        writer.answered(batch, 1, Unreachable("silence"))
        assert home.delays_s[-1] <= 0.02

    run(program)
