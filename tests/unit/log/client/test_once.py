"""A writer that sends each batch once: what its owner is told, without a network [K5]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace.errors import LeaderNotAvailable, NotLeader, Unreachable
from millrace.log.client.once import OnceWriter
from millrace.wire.kafka.hot import Produced


class Home:
    doubts = 0

    def kick(self, writer: OnceWriter) -> None:
        pass

    def doubt(self) -> None:
        self.doubts += 1

    def ended(self, writer: OnceWriter) -> None:
        pass


def run(story: Callable[[Home, OnceWriter], Awaitable[None]]) -> None:
    async def main() -> None:
        home = Home()
        await story(home, OnceWriter(home, ("t", 0)))  # type: ignore[arg-type]

    asyncio.run(main())


def test_K5_what_was_surely_not_sent_is_told_apart_from_what_is_unknown() -> None:
    async def story(home: Home, writer: OnceWriter) -> None:
        out, waiting = writer.send([b"one"]), writer.send([b"two"])
        assert writer.take("old") is not None
        writer.delayed(Unreachable("nobody leads"))
        with pytest.raises(LeaderNotAvailable):
            await waiting
        assert not out.done()
        writer.leave("old")
        with pytest.raises(Unreachable):
            await out
        assert writer.is_idle

    run(story)


def test_K5_only_what_went_to_the_former_leader_is_given_up() -> None:
    async def story(home: Home, writer: OnceWriter) -> None:
        first, second = writer.send([b"one"]), writer.send([b"two"])
        writer.take("old")
        batch = writer.take("new")
        assert batch is not None
        writer.leave("old")
        assert (first.done(), second.done(), writer.routes()) == (True, False, ["new"])
        writer.answered(batch, batch.attempt, Produced(0, 0, 41))
        assert await second == 41

    run(story)


def test_K5_an_error_is_told_as_it_is_and_casts_doubt_on_who_leads() -> None:
    async def story(home: Home, writer: OnceWriter) -> None:
        future = writer.send([b"one"])
        batch = writer.take("route")
        assert batch is not None
        writer.answered(batch, batch.attempt, Produced(0, NotLeader.kafka_code))
        with pytest.raises(NotLeader):
            await future
        assert home.doubts == 1

    run(story)


def test_K5_a_closed_writer_fails_what_waits_what_is_out_and_what_comes() -> None:
    async def story(home: Home, writer: OnceWriter) -> None:
        out, waiting = writer.send([b"one"]), writer.send([b"two"])
        writer.take("route")
        writer.close()
        for future, kind in ((out, Unreachable), (waiting, LeaderNotAvailable), (writer.send([b"x"]), Unreachable)):
            with pytest.raises(kind):
                await future

    run(story)
