"""Passes come soon after news, else with the heartbeat [C9]."""

from __future__ import annotations

import asyncio
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
        beat, began = Beat(ports.clock, EVERY_S), ports.clock.now()
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
    assert all(EVERY_S <= b - a <= EVERY_S + 2 * limits.FEED_PASS_GAP_S for a, b in pairwise(beats))
    news = [at for at, heartbeat in passes if not heartbeat]
    assert len(news) == 3, "three pokes at once are two passes, one for the first and one for the others"
    assert all(b - a >= 0.01 for (a, _), (b, _) in pairwise(passes))
