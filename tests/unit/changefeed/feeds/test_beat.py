"""Passes come soon after news, else with the heartbeat [C9]."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise

from millrace import limits
from millrace.changefeed.feeds.beat import Beat
from millrace.ops.ports import Ports
from millrace_sim.kit import Sim

EVERY_S = 0.5


def test_C9_news_bring_a_pass_forward_and_heartbeats_keep_their_time() -> None:
    sim = Sim(1)
    passes: list[tuple[float, bool]] = []

    async def program(ports: Ports) -> None:
        beat, began = Beat(EVERY_S), ports.clock.now()
        for delay_s in (0.6, 0.601, 0.602, 1.8):
            asyncio.get_running_loop().call_later(delay_s, beat.poke)
        while ports.clock.now() - began < 2.0:
            heartbeat = await beat.wait()
            passes.append((round(ports.clock.now() - began, 2), heartbeat))

    async def main() -> None:
        sim.start(sim.add_host("h"), program)
        await asyncio.sleep(3.0)

    sim.run(main())
    beats = [at for at, heartbeat in passes if heartbeat]
    assert beats[0] == limits.FEED_PASS_GAP_S
    assert all(EVERY_S - limits.FEED_PASS_GAP_S <= b - a <= EVERY_S + 2 * limits.FEED_PASS_GAP_S
               for a, b in pairwise(beats[1:])), "the second one comes with those of all others"
    news = [at for at, heartbeat in passes if not heartbeat]
    assert len(news) == 3, "three pokes at once are two passes, one for the first and one for the others"
    assert all(b - a >= 0.01 for (a, _), (b, _) in pairwise(passes))


def test_C9_a_machine_that_wants_to_look_has_a_pass_of_its_own_and_heartbeats_keep_their_time() -> None:
    passes: list[tuple[float, bool]] = []

    async def main() -> None:
        loop, beat = asyncio.get_running_loop(), Beat(EVERY_S)
        await beat.wait()
        for _ in range(5):
            heartbeat = await beat.wait(0.2)
            passes.append((round(loop.time() % EVERY_S, 2), heartbeat))

    Sim(1).run(main())
    assert [heartbeat for _, heartbeat in passes] == [False, False, True, False, False]
    assert passes[2][0] == 0.0


def test_C9_machines_of_one_process_have_their_heartbeats_at_the_same_moments() -> None:
    beats: list[list[float]] = [[], []]

    async def follow(into: list[float]) -> None:
        loop, beat = asyncio.get_running_loop(), Beat(EVERY_S)
        while loop.time() < 5.0:
            if await beat.wait():
                into.append(round(loop.time(), 6))

    async def main() -> None:
        first = asyncio.create_task(follow(beats[0]))
        await asyncio.sleep(0.123)
        await asyncio.gather(first, follow(beats[1]))

    Sim(1).run(main())
    assert beats[0][1:] == beats[1][1:], "after the first one, which is soon"
    assert len(beats[0]) > 5


def test_C7_what_others_wait_for_has_its_pass_at_once_and_the_next_news_share_one_again() -> None:
    passes: list[float] = []

    async def main() -> None:
        loop, beat = asyncio.get_running_loop(), Beat(EVERY_S)
        await beat.wait()
        began = loop.time()
        for delay_s, at_once in ((0.100, False), (0.101, False), (0.102, True), (0.103, False)):
            loop.call_later(delay_s, partial(beat.poke, at_once=at_once))
        for _ in range(3):
            assert not await beat.wait()
            passes.append(round(loop.time() - began, 3))

    Sim(1).run(main())
    assert passes == [0.1, 0.102, 0.102 + limits.FEED_PASS_GAP_S]


def test_P7_without_news_a_machine_is_woken_by_its_heartbeat_alone() -> None:
    async def main() -> None:
        beat, timers = Beat(EVERY_S), 0
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def counted(*arguments: object, **named: object) -> asyncio.TimerHandle:
            nonlocal timers
            timers += 1
            return call_at(*arguments, **named)  # type: ignore[arg-type]

        await beat.wait()
        loop.call_at = counted  # type: ignore[method-assign,assignment]
        for _ in range(4):
            assert await beat.wait()
        assert timers == 4

    Sim(1).run(main())
