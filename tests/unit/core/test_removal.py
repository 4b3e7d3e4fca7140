"""Removing a broker that is gone for good [L29]."""

from __future__ import annotations

import pytest

from millrace.core import election, removal
from millrace.core.cluster import ClusterState
from millrace.errors import BrokerInUse, Damaged, Refused, UnknownBroker
from millrace.model.messages import NewTopic
from millrace.model.records import BrokerRemoved
from support_control import Control


def gone() -> Control:
    c = Control().up(1, 2, 3)
    c.fence(3)
    return c


def test_L29_a_broker_that_is_gone_and_holds_nothing_is_removed() -> None:
    c = gone()
    c.assigned((1, 2))
    done = c.do(removal.remove(c.state, 3, is_heard=False))
    assert done.index == c.state.index
    assert sorted(c.state.brokers) == [1, 2]
    again = ClusterState.from_records(c.state.index, c.state.to_records())
    assert sorted(again.brokers) == [1, 2]


def test_L29_an_unknown_broker_is_not_found() -> None:
    with pytest.raises(UnknownBroker, match="no broker 9"):
        removal.remove(gone().state, 9, is_heard=False)


def test_L29_one_that_lives_is_not_removed() -> None:
    c = gone()
    with pytest.raises(BrokerInUse, match="broker 2 is alive"):
        removal.remove(c.state, 2, is_heard=False)
    with pytest.raises(BrokerInUse, match="broker 3 is alive"):
        removal.remove(c.state, 3, is_heard=True)      # fenced, and its heartbeats come


def test_L29_one_that_holds_replicas_is_refused_with_their_partitions() -> None:
    c = Control().up(1, 2, 3)
    c.create(NewTopic("many", assignment=dict.fromkeys(range(12), (1, 3))))
    c.fence(3)
    with pytest.raises(BrokerInUse) as refused:
        removal.remove(c.state, 3, is_heard=False)
    assert "broker 3 holds replicas of 12 partitions: many/0, many/1," in str(refused.value)
    assert str(refused.value).endswith("many/9 and 2 more")


def test_L29_one_that_comes_back_registers_as_new() -> None:
    c = gone()
    before = c.state.brokers[3].incarnation
    message = c.heartbeat(3)
    c.do(removal.remove(c.state, 3, is_heard=False))
    with pytest.raises(Refused, match="register first"):
        election.heartbeat(c.state, message)
    c.up(3)
    assert c.state.brokers[3].incarnation > before
    assert c.state.eligible_brokers() == {1, 2, 3}


def test_L29_a_removal_of_another_incarnation_is_no_record_of_this_history() -> None:
    c = gone()
    with pytest.raises(Damaged):
        c.state.replay(c.state.index + 1, BrokerRemoved(3, c.state.brokers[3].incarnation - 1))
