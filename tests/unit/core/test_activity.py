"""[L17] What is written to is remembered for a while, and comes first when a broker goes."""

from __future__ import annotations

from uuid import UUID

from millrace.core import election
from millrace.core.activity import Activity
from millrace.model.ids import TopicPartition
from millrace.model.records import BrokerFenced, PartitionChanged
from support_control import Control, violations

A, B = (TopicPartition(UUID(int=1), n) for n in (0, 1))


def test_L17_a_busy_partition_is_forgotten_after_one_to_two_generations() -> None:
    activity = Activity(5.0)
    assert A not in activity
    activity.grew(A, 100.0)
    assert A in activity
    activity.grew(B, 106.0)
    assert A in activity
    assert B in activity
    activity.grew(B, 112.0)
    assert A not in activity
    assert B in activity


def test_L17_a_long_silence_forgets_everything_at_the_next_word() -> None:
    activity = Activity(5.0)
    activity.grew(A, 100.0)
    activity.grew(B, 1000.0)
    assert A not in activity


def test_L17_fencing_looks_after_busy_partitions_first_and_forgets_none() -> None:
    c = Control().up(1, 2, 3)
    topic = c.topic(partitions=300, factor=3)
    late = [tp for tp in c.state.partitions_on(1) if tp.partition > 200]
    led = next(tp for tp in late if c.p(tp).leader == 1)
    followed = next(tp for tp in late if c.p(tp).leader != 1)
    activity = Activity(5.0)
    activity.grew(led, 1.0)
    activity.grew(followed, 1.0)
    decision = election.fence(c.state, 1, "gone", first=activity)
    plain = election.fence(c.state, 1, "gone")
    assert isinstance(decision.records[0], BrokerFenced)
    changes = [r for r in decision.records if isinstance(r, PartitionChanged)]
    assert {r.partition for r in changes[:2]} == {led.partition, followed.partition}
    assert sorted(decision.records, key=repr) == sorted(plain.records, key=repr), "only the order differs"
    leaders = [c.p(TopicPartition(topic, r.partition)).leader == 1 for r in changes[2:]]
    assert leaders == sorted(leaders, reverse=True), "then the led ones: they take no write now"
    c.do(decision)
    assert violations(c.state) == []
