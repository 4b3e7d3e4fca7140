"""Placement policies [L3]."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.placement import POLICIES, Site, place
from millrace.errors import InvalidReplicationFactor


def flat(count: int) -> list[Site]:
    return [Site(n, f"h{n}", f"h{n}", 0, 0) for n in range(1, count + 1)]


@pytest.mark.parametrize("policy", POLICIES)
@given(brokers=st.integers(1, 9), factor=st.integers(1, 5), partitions=st.integers(1, 40))
def test_L3_different_brokers_and_even_leaders(policy: str, brokers: int, factor: int, partitions: int) -> None:
    where = flat(brokers)
    if factor > brokers:
        with pytest.raises(InvalidReplicationFactor, match=f"factor {factor} needs {factor} .* there are {brokers}"):
            place(policy, where, partitions=partitions, replication_factor=factor)
        assert all(site.leaders == site.replicas == 0 for site in where)
        return
    placed = place(policy, where, partitions=partitions, replication_factor=factor)
    assert len(placed) == partitions
    assert all(len(set(replicas)) == factor for replicas in placed)
    leaders = Counter(dict.fromkeys(range(1, brokers + 1), 0))
    leaders.update(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert {site.broker: site.leaders for site in where} == dict(leaders)


@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data(), brokers=st.integers(2, 9), hosts=st.integers(1, 4), partitions=st.integers(1, 20))
def test_L3_different_hosts_as_long_as_there_are_enough(
    policy: str, data: st.DataObject, brokers: int, hosts: int, partitions: int
) -> None:
    on = [data.draw(st.integers(1, hosts)) for _ in range(brokers)]
    where = [Site(n, f"h{host}", f"h{host}", 0, 0) for n, host in enumerate(on)]
    factor = data.draw(st.integers(1, min(4, brokers)))
    for replicas in place(policy, where, partitions=partitions, replication_factor=factor):
        assert len({on[broker] for broker in replicas}) == min(factor, len(set(on)))


def test_L3_rack_aware_takes_different_racks_then_different_hosts() -> None:
    where = [
        Site(1, "a1", "a", 0, 0), Site(2, "a1", "a", 0, 0), Site(3, "a2", "a", 0, 0),
        Site(4, "b1", "b", 0, 0), Site(5, "b1", "b", 0, 0),
    ]
    host = {site.broker: site.host for site in where}
    rack = {site.broker: site.zone for site in where}
    for replicas in place("rack-aware", where, partitions=30, replication_factor=3):
        assert {rack[b] for b in replicas} == {"a", "b"}
        assert len({host[b] for b in replicas}) == 3


def test_L3_least_loaded_fills_the_empty_broker_first() -> None:
    where = [Site(1, "h1", "h1", 10, 30), Site(2, "h2", "h2", 10, 30), Site(3, "h3", "h3", 0, 0)]
    placed = place("least-loaded", where, partitions=10, replication_factor=1)
    assert placed == [(3,)] * 10


@pytest.mark.parametrize("policy", POLICIES)
def test_L3_many_topics_of_one_partition_spread_too(policy: str) -> None:
    where = flat(3)
    leaders = [place(policy, where, partitions=1, replication_factor=2)[0][0] for _ in range(30)]
    assert Counter(leaders) == {1: 10, 2: 10, 3: 10}


@pytest.mark.parametrize("policy", POLICIES)
def test_L3_replicas_spread_evenly(policy: str) -> None:
    where = flat(6)
    place(policy, where, partitions=60, replication_factor=3)
    counts = [site.replicas for site in where]
    assert max(counts) - min(counts) <= 2, counts
