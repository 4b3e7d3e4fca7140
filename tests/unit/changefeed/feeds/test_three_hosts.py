"""Three captures' hosts over real links and a real store: one changefeed through its life [C1-C9, V9]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from millrace.changefeed.feeds.coordinator_host import CoordinatorHost
from millrace.changefeed.feeds.history import FeedHistory
from millrace.changefeed.feeds.maintainer_host import MaintainerHost
from millrace.core.feeds.feeds import FeedsDecision, FeedsState
from millrace.errors import NotCoordinator
from millrace.model.spans import Place
from millrace.ops.real import real_ports
from millrace.store.sqlite import SqliteStore
from support_feeds import Host, Target, spec, until

FEED = "orders"


class World:
    def __init__(self, directory: Path) -> None:
        self.ports = real_ports()
        self.store = SqliteStore(str(directory), self.ports)
        self.target = Target(FEED)
        self.hosts = {n: Host(n, {FEED: self.target}, self.store, self.ports) for n in (1, 2, 3)}

    def coordinator(self) -> CoordinatorHost | None:
        return next((h.feeds.coordinator for h in self.hosts.values() if h.feeds.coordinator is not None), None)

    def is_removed(self) -> bool:
        host = self.coordinator()
        return host is not None and FEED not in host.machine.state.feeds

    def maintainer(self) -> MaintainerHost | None:
        found = [h.feeds.maintainers[FEED] for h in self.hosts.values() if FEED in h.feeds.maintainers]
        return found[0] if len(found) == 1 and found[0].ready else None

    def held(self) -> dict[int, int]:
        """Dispatchers by capture."""
        return {n: len(h.feeds.managers[FEED].machine.held) for n, h in self.hosts.items() if FEED in h.feeds.managers}

    def is_placed(self) -> bool:
        """Every span works where it is recorded, nothing else is held, nothing is under way."""
        host = self.maintainer()
        if host is None or host.machine is None:
            return False
        machine = host.machine
        spans = [s for s in machine.state.spans.values() if machine.ddl.position and machine.ddl.exists(
            s.span.table, s.born)]
        works = [s for s in spans if s.place is not None and machine.sight.seen(s.id, s.place) == "working"]
        return bool(spans) and works == spans and not machine.placing.operators and sum(
            self.held().values()) == len(spans)

    def checkpoint(self) -> int:
        host = self.maintainer()
        return host.machine.state.checkpoint if host is not None and host.machine is not None else -1

    async def ask(self, decide: Callable[[FeedsState], FeedsDecision[object]]) -> None:
        """As a client does: again, when the office was just changing hands."""
        while True:
            await until(lambda: self.coordinator() is not None)
            host = self.coordinator()
            assert host is not None
            try:
                await host.submit(decide)
                return
            except NotCoordinator:
                await asyncio.sleep(0.05)


def play(directory: Path, story: Callable[[World], Awaitable[None]]) -> World:
    async def main() -> World:
        world = World(directory)
        try:
            for host in world.hosts.values():
                await host.start()
            await story(world)
        finally:
            for host in world.hosts.values():
                await host.stop()
            await world.store.close()
        return world

    return asyncio.run(main())


def test_C1_C4_C6_a_changefeed_is_placed_moved_paused_resumed_and_removed(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        await w.ask(lambda state: state.create(spec(FEED), wall_ms=1))
        await until(w.is_placed)
        w.target.advance(20)
        await until(lambda: w.target.is_eaten() and w.checkpoint() >= 20)
        await until(lambda: len([n for n in w.held().values() if n]) > 1 and w.is_placed())      # balance sees to it

        # kill the capture that has the maintainer, and of these the coordinator if it is the same
        host = w.maintainer()
        assert host is not None
        killed = next(n for n, h in w.hosts.items() if h.feeds.maintainers.get(FEED) is host)
        before = host.epoch
        await w.hosts.pop(killed).kill()
        w.target.advance(40)
        await until(lambda: w.is_placed() and w.target.is_eaten() and w.checkpoint() >= 40)
        moved = w.maintainer()
        assert moved is not None
        assert moved.epoch > before
        assert killed not in {place.capture for place in places(moved)}

        await w.ask(lambda state: state.pause(FEED))
        await until(lambda: not any(w.held().values()) and not any(h.feeds.maintainers for h in w.hosts.values()))
        epochs = w.target.epochs()
        w.target.advance(59)
        await w.ask(lambda state: state.resume(FEED))
        await until(lambda: w.is_placed() and w.target.is_eaten() and w.checkpoint() >= 59)
        host = w.maintainer()
        assert host is not None
        assert min(place.epoch for place in places(host)) > max(epochs.values())
        highest = host.machine.state.epoch if host.machine is not None else 0

        await w.ask(lambda state: state.remove(FEED))
        await until(w.is_removed)
        assert not any(w.held().values())
        history = await FeedHistory.take(w.store, FEED, next(iter(w.hosts.values())).feeds.around.me, 10_000)
        assert history.state.epoch > highest
        assert (history.state.spans, history.state.checkpoint) == ({}, 0)
        assert w.target.removed_at == history.state.epoch

    world = play(tmp_path / "store", story)
    assert world.target.found() == []


def places(host: MaintainerHost) -> list[Place]:
    assert host.machine is not None
    return [span.place for span in host.machine.state.spans.values() if span.place is not None]


def test_C9_a_coordinator_that_nobody_hears_gives_its_office_away_and_is_put_out(tmp_path: Path) -> None:
    async def story(w: World) -> None:
        await w.ask(lambda state: state.create(spec(FEED), wall_ms=1))
        await until(w.is_placed)
        w.target.advance(20)
        await until(lambda: w.target.is_eaten() and w.checkpoint() >= 20)
        number, mute = next((n, h) for n, h in w.hosts.items() if h.feeds.coordinator is not None)
        await mute.feeds._post.close()                        # it reaches the store, and no capture
        await until(lambda: any(h.feeds.coordinator is not None for n, h in w.hosts.items() if n != number))
        assert mute.feeds.coordinator is None
        w.target.advance(40)
        await until(lambda: mute.put_out)
        del w.hosts[number]
        await until(lambda: w.is_placed() and w.target.is_eaten() and w.checkpoint() >= 40)
        held = mute.feeds.managers[FEED].machine.held if FEED in mute.feeds.managers else {}
        await until(lambda: not held)                         # who finds a greater epoch removes itself [C3]
        assert len(mute.put_out) == 1
        await mute.stop()

    assert play(tmp_path / "store", story).target.found() == []
