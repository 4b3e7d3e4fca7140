"""What must hold, judged from outside: everything converges after healing, and whatever waits says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.model.spans import Dispatcher
from millrace_sim.checkers import Violation

if TYPE_CHECKING:
    from millrace.core.feeds.blockers import Blocker
    from millrace.core.feeds.feeds import FeedEntry
    from millrace_sim.control.capture import CoordinatorHost
    from millrace_sim.control.hosts import MaintainerHost
    from millrace_sim.control.world import World

SILENT_S = 5.0         # so long may something wait before it must be shown: a few passes
BEHIND_LSN = 6         # the checkpoint is written once a second, LSNs come twice a second


def stalls(world: World) -> list[str]:
    """Why the healed world is not settled; nothing: it is."""
    holders = [c.coordinator for c in world.captures.values() if c.up and c.coordinator is not None]
    if len(holders) != 1:
        return [f"{len(holders)} coordinators"]
    found = _hearing(world, holders[0])
    found += [f"capture {c.id} is down" for c in world.captures.values() if not c.up and c.id != world.mute]
    for feed, entry in holders[0].machine.state.feeds.items():
        if entry.removing:
            found.append(f"{feed} is still being removed")
            continue
        if feed == world.laid_aside and not entry.runs:
            continue                                         # nothing may be left of it: see below
        if entry.renew:
            found.append(f"{feed} was changed, and nobody has heard of it")
        place = entry.place
        capture = world.captures[place.capture] if place is not None else None
        host = capture.maintainers.get(feed) if capture is not None and capture.up else None
        if host is None or place is None or host.epoch != place.epoch or not host.ready:
            found.append(f"{feed} is not maintained: {place}, {holders[0].machine.operators.get(feed)}")
        else:
            found += _feed(world, host)
            found += _changes(world, host, entry)
    return found + _leftovers(world, holders[0])


def _hearing(world: World, holder: CoordinatorHost) -> list[str]:
    up = [c.id for c in world.captures.values() if c.up]
    heard = sum(holder.machine.sight.hearing.fresh(capture, world.now) for capture in up)
    return [f"coordinator {holder.capture.id} hears {heard} of {len(up)}"] if heard * 2 < len(up) else []


def _feed(world: World, host: MaintainerHost) -> list[str]:
    machine, data, feed = host.machine, host.data, host.feed
    found = []
    for span in machine.state.spans.values():
        seen = machine.sight.seen(span.id, span.place) if span.place is not None else "absent"
        if seen != "working" or span.id in machine.placing.operators:
            found.append(f"{feed} span {span.id} {span.place} is {seen}: {machine.placing.operators.get(span.id)}")
    covered = [part for span in machine.state.spans.values() for part in span.span.parts]
    taken = data.rules.now.takes
    wanted = [part for part in data.log if part.table not in data.died and taken(part.table)]
    if sorted(covered) != sorted(wanted):
        found.append(f"{feed} covers {len(covered)} partitions, there are {len(wanted)}")
    for part, rows in data.log.items():
        died = part.table in data.died
        was_out = not taken(part.table) or (died and (data.rules.updates or data.rewinds or data.needed))
        if data.next[part] < len(rows) - died and not was_out:
            found.append(f"{feed} {part.table.oid}/{part.partition} at {data.next[part]} of {len(rows)}")
    left = [change for change in data.rules.now.told(data.changes) if change.number >= data.ddl.next]
    if left or data.ddl.isolated:
        found.append(f"{feed} ddl position {data.ddl} of {len(data.changes)}")
    if machine.state.checkpoint < data.available - BEHIND_LSN:
        found.append(f"{feed} checkpoint {machine.state.checkpoint} of {data.available}")
    return found


def _changes(world: World, host: MaintainerHost, entry: FeedEntry) -> list[str]:
    """What people have changed is in force everywhere."""
    machine, found = host.machine, []
    if machine.settling.is_due or machine.state.spec != entry.spec:
        found.append(f"{host.feed} is not settled: {entry.spec}")
    if machine.state.rewinds != entry.rewinds:
        found.append(f"{host.feed} has done rewind {machine.state.rewinds} of {entry.rewinds}")
    for span in machine.state.spans.values():
        manager = world.captures[span.place.capture].managers.get(host.feed) if span.place is not None else None
        if manager is None or span.place is None:
            continue
        here = manager.settings.get(Dispatcher(span.id, span.place.epoch))
        if here != (due := host.data.rules.now.settings(span.span.table)):
            found.append(f"{host.feed} span {span.id} works with {here!r}, not with {due!r}")
    return found


def _leftovers(world: World, holder: CoordinatorHost) -> list[str]:
    """Work that nobody recorded."""
    found, feeds = [], holder.machine.state.feeds
    for capture in world.captures.values():
        if not capture.up:
            continue
        for feed, maintainer in capture.maintainers.items():
            place = feeds[feed].place if feed in feeds and feeds[feed].runs else None
            if place is None or (place.capture, place.epoch) != (capture.id, maintainer.epoch):
                found.append(f"a maintainer of {feed} too many on {capture.id}")
        for feed, manager in capture.managers.items():
            place = feeds[feed].place if feed in feeds else None
            host = world.captures[place.capture].maintainers.get(feed) if place is not None else None
            spans = host.machine.state.spans if host is not None else {}
            for span_id, held in manager.machine.held.items():
                recorded = spans[span_id].place if span_id in spans else None
                if recorded is None or (recorded.capture, recorded.epoch) != (capture.id, held.epoch):
                    found.append(f"{feed} span {span_id} epoch {held.epoch} is left on {capture.id}")
    return found


def check_waiting(world: World) -> None:
    """No silent stall [C9]: a span that does not work, a changefeed that nobody maintains is somebody's blocker."""
    waiting: dict[str, bool] = {}
    for capture in world.captures.values():
        if not capture.up or world.now < capture.paused_until or not capture.reaches_store():
            continue
        host = capture.coordinator
        if host is not None:
            shown = {b.what for b in _sound(world, host.machine.blockers())}
            for feed, entry in host.machine.state.feeds.items():
                seen = host.machine.sight.seen(feed, entry.place) if entry.place is not None else "gone"
                if entry.runs and seen not in ("working", "unknown"):
                    waiting[f"{host.token} changefeed {feed}"] = f"changefeed {feed}" in shown
        for maintainer in capture.maintainers.values():
            waiting.update(_waiting_spans(world, maintainer))
    for name, is_shown in waiting.items():
        since = world.waiting_since.setdefault(name, world.now) if not is_shown else world.now
        if world.now - since >= SILENT_S:
            raise Violation(f"C9 {name} has waited since {since:.1f} and nobody shows it")
    world.waiting_since = {n: s for n, s in world.waiting_since.items() if waiting.get(n) is False}


def _waiting_spans(world: World, host: MaintainerHost) -> dict[str, bool]:
    machine = host.machine
    if host.broken or not machine.ready or world.store.office(f"changefeed/{host.feed}").token != host.epoch:
        return {}
    shown = {blocker.what for blocker in _sound(world, machine.blockers())}
    out = {}
    for span in machine.state.spans.values():
        there = machine.ddl.position is not None and machine.ddl.exists(span.span.table, span.born)
        works = span.place is not None and machine.sight.seen(span.id, span.place) == "working"
        if there and not works:
            out[f"{host.feed} {host.epoch} span {span.id}"] = f"span {span.id}" in shown
    change = machine.ddl.waiting()
    if change is not None:
        out[f"{host.feed} {host.epoch} change {change.number}"] = any(
            what.startswith(f"schema change {change.number}") for what in shown)
    return out


def _sound(world: World, blockers: list[Blocker]) -> list[Blocker]:
    for blocker in blockers:
        if not blocker.owner or not blocker.reason or blocker.since > world.now:
            raise Violation(f"C9 {blocker} does not say who, why and since when")
    return blockers
