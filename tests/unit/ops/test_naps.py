"""Waits of idle processes: at common moments, and ended by their event."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from millrace.ops.naps import nap, next_look


@given(st.floats(0, 1e9), st.sampled_from([0.25, 0.5, 1.0, 10.0]))
def test_the_next_look_is_the_next_multiple_and_always_ahead(now: float, period_s: float) -> None:
    at = next_look(now, period_s)
    assert now < at <= now + period_s
    assert at % period_s == 0


def test_looks_of_half_a_second_and_of_a_second_share_their_moments() -> None:
    moments = {next_look(now / 100, 1.0) for now in range(1000)}
    assert moments <= {next_look(now / 100, 0.5) for now in range(1000)}


def test_a_nap_ends_at_its_time_without_its_event() -> None:
    async def main() -> None:
        loop, poke = asyncio.get_running_loop(), asyncio.Event()
        until = loop.time() + 0.02
        await nap(poke, until)
        assert loop.time() >= until - 0.001

    asyncio.run(main())


def test_a_nap_ends_at_once_by_its_event_and_its_timer_does_not_set_it_later() -> None:
    async def main() -> None:
        loop, poke = asyncio.get_running_loop(), asyncio.Event()
        poke.set()
        await nap(poke, loop.time() + 0.01)
        poke.clear()
        later: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.03, later.set_result, None)        # behind where the nap's timer stood
        await later
        assert not poke.is_set()

    asyncio.run(main())
