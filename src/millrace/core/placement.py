"""Where replicas go: named policies over the brokers that are alive [L3].

In: brokers with their host, rack and present load, how many partitions, how many replicas each. Out: replicas per
partition, the leader first. Promises, of every policy: replicas of a partition are on different brokers, on different
hosts (racks, for rack-aware) as long as there are enough of them, and leaders spread evenly. Too few brokers is an
error that names both numbers.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from millrace.core.cluster import ClusterState
from millrace.errors import InvalidReplicationFactor
from millrace.model.ids import BrokerId

Replicas = tuple[BrokerId, ...]


@dataclass(slots=True, eq=False)
class Site:
    """A broker as a place for replicas. `zone` is its rack, or its host where no rack is named."""

    broker: BrokerId
    host: str
    zone: str
    leaders: int
    replicas: int


Apart = Callable[[Site], tuple[str, ...]]   # what replicas of one partition should not share, weightiest first


def sites(state: ClusterState) -> list[Site]:
    """The brokers a replica may be placed on now."""
    found = []
    for broker in sorted(state.eligible_brokers()):
        b = state.brokers[broker]
        host = b.host_id or b.endpoint.host
        leaders, replicas = len(state.partitions_led_by(broker)), len(state.partitions_on(broker))
        found.append(Site(broker, host, b.rack or host, leaders, replicas))
    return found


def place(policy: str, where: list[Site], *, partitions: int, replication_factor: int) -> list[Replicas]:
    """Replicas of each new partition. Counts them into `where`, so that the next topic of a request sees them."""
    if replication_factor > len(where):
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor} needs {replication_factor} live brokers, there are {len(where)}"
        )
    return POLICIES[policy](where, partitions, replication_factor)


def _round_robin(where: list[Site], partitions: int, factor: int) -> list[Replicas]:
    """Leaders go round the ring; followers too, one step further each time the leaders have been round, so that the
    partitions of a lost leader fall to different brokers."""
    ring = sorted(where, key=lambda s: s.broker)
    first = min(range(len(ring)), key=lambda i: (ring[i].leaders, ring[i].replicas, i))
    placed = []
    for n in range(partitions):
        at, shift = (first + n) % len(ring), n // len(ring)
        followers = (ring[(at + 1 + (shift + i) % (len(ring) - 1)) % len(ring)] for i in range(len(ring) - 1))
        placed.append(_count(_take(ring[at], followers, factor, apart=_by_host)))
    return placed


def _least_loaded(where: list[Site], partitions: int, factor: int) -> list[Replicas]:
    return _by_load(where, partitions, factor, _by_host)


def _rack_aware(where: list[Site], partitions: int, factor: int) -> list[Replicas]:
    return _by_load(where, partitions, factor, _by_zone)


def _by_load(where: list[Site], partitions: int, factor: int, apart: Apart) -> list[Replicas]:
    """Leader: fewest leaders. Followers: fewest replicas. Both orders are kept up to date, not sorted anew."""
    by_leaders, by_replicas = sorted(where, key=_leaders_first), sorted(where, key=_replicas_first)
    placed = []
    for _ in range(partitions):
        leader = by_leaders[0]
        taken = _take(leader, (site for site in by_replicas if site is not leader), factor, apart=apart)
        by_leaders.remove(leader)
        for site in taken:
            by_replicas.remove(site)
        for site in taken[1:]:
            by_leaders.remove(site)
        placed.append(_count(taken))
        for site in taken:
            insort(by_leaders, site, key=_leaders_first)
            insort(by_replicas, site, key=_replicas_first)
    return placed


def _leaders_first(site: Site) -> tuple[int, int, BrokerId]:
    return site.leaders, site.replicas, site.broker


def _replicas_first(site: Site) -> tuple[int, int, BrokerId]:
    return site.replicas, site.leaders, site.broker


def _by_host(site: Site) -> tuple[str, ...]:
    return (site.host,)


def _by_zone(site: Site) -> tuple[str, ...]:
    return (site.zone, site.host)


def _take(leader: Site, order: Iterable[Site], factor: int, *, apart: Apart) -> list[Site]:
    """The leader, then the earliest of `order` that share nothing with those taken; where these run out, the earliest
    that share least."""
    taken, passed = [leader], []
    seen = [{part} for part in apart(leader)]
    followers = iter(order)
    while len(taken) < factor:
        for site in followers:
            if not any(_shared(site, seen, apart)):
                break
            passed.append(site)
        else:
            site = min(passed, key=lambda site: _shared(site, seen, apart))
            passed.remove(site)
        taken.append(site)
        for part, used in zip(apart(site), seen, strict=True):
            used.add(part)
    return taken


def _shared(site: Site, seen: list[set[str]], apart: Apart) -> list[bool]:
    return [part in used for part, used in zip(apart(site), seen, strict=True)]


def _count(taken: list[Site]) -> Replicas:
    taken[0].leaders += 1
    for site in taken:
        site.replicas += 1
    return tuple(site.broker for site in taken)


POLICIES: dict[str, Callable[[list[Site], int, int], list[Replicas]]] = {
    "round-robin": _round_robin,
    "least-loaded": _least_loaded,
    "rack-aware": _rack_aware,
}
