"""Topics, partitions, configs and producer ids [L1, L3]."""

from __future__ import annotations

from uuid import UUID

import pytest

from millrace import limits
from millrace.core import admin
from millrace.errors import StaleIncarnation
from millrace.model.ids import TopicPartition
from millrace.model.messages import (
    AdminResult,
    AlterConfigs,
    AskProducerIds,
    ConfigEdit,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewPartitions,
    NewTopic,
)
from support_control import Control, violations


@pytest.fixture
def c() -> Control:
    return Control().up(1, 2, 3)


def refused(c: Control, new: NewTopic) -> AdminResult:
    before = c.state.index
    result = c.create(new).results[0]
    assert c.state.index == before, "nothing is created"
    assert result.code
    return result


@pytest.mark.parametrize(("brokers", "factor", "min_insync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)])
def test_L3_defaults_follow_the_number_of_brokers(brokers: int, factor: int, min_insync: int) -> None:
    c = Control().up(*range(1, brokers + 1))
    result = c.create(NewTopic("t")).results[0]
    assert (result.code, result.partitions, result.replication_factor) == ("", 1, factor)
    assert result.topic_id is not None
    assert c.state.min_insync(result.topic_id) == min_insync


def test_L3_too_few_brokers_is_a_clear_error_and_nothing_is_created(c: Control) -> None:
    result = refused(c, NewTopic("t", 3, 4))
    assert result.code == "invalid_replication_factor"
    assert result.message == "replication factor 4 needs 4 live brokers, there are 3"


def test_L3_fenced_and_draining_brokers_get_no_replicas(c: Control) -> None:
    c.fence(1)
    c.beat(2, stopping=True)
    assert refused(c, NewTopic("t", 1, 2)).code == "invalid_replication_factor"
    topic_id = c.topic("t", partitions=4)
    assert {p.replicas for p in c.state.topics[topic_id].partitions.values()} == {(3,)}


def test_L3_without_brokers_nothing_is_created() -> None:
    assert refused(Control(), NewTopic("t")).code == "invalid_replication_factor"


def test_L3_leaders_spread_over_topics_of_one_request(c: Control) -> None:
    c.create(*(NewTopic(f"t{n}", 1, 1) for n in range(9)))
    assert [len(c.state.partitions_led_by(b)) for b in (1, 2, 3)] == [3, 3, 3]
    assert violations(c.state) == []


def test_L3_the_placement_is_named_by_the_topic_or_the_cluster(c: Control) -> None:
    assert refused(c, NewTopic("t", configs={"millrace.placement": "best"})).code == "invalid_topic_config"
    c.topic("pinned", millrace_placement="least-loaded")
    c.create(NewTopic("by-cluster"), defaults=admin.Defaults(placement="rack-aware", partitions=5))
    assert len(c.state.topics_by_name["by-cluster"].partitions) == 5


def test_L1_ids_are_new_and_partitions_count_from_0(c: Control) -> None:
    topic_id = c.topic("t", partitions=4)
    assert sorted(c.state.topics[topic_id].partitions) == [0, 1, 2, 3]
    p = c.p(TopicPartition(topic_id, 2))
    assert (p.leader_epoch, p.partition_epoch, p.isr) == (0, 0, p.replicas)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250, "a/b", "a\n"])
def test_L20_topic_names_follow_kafkas_rule(c: Control, name: str) -> None:
    assert refused(c, NewTopic(name)).code == "invalid_topic_name"


def test_L20_dot_and_underscore_collide(c: Control) -> None:
    c.topic("a.b")
    assert "collides with 'a.b'" in refused(c, NewTopic("a_b")).message
    done = c.create(NewTopic("x.y"), NewTopic("x_y"))
    assert [r.code for r in done.results] == ["", "invalid_topic_name"]
    c.do(admin.delete_topics(c.state, DeleteTopics((("a.b", None),))))
    c.topic("a_b")


def test_L20_names_of_our_own_are_refused_to_users(c: Control) -> None:
    assert refused(c, NewTopic("__millrace_offsets")).code == "invalid_topic_name"
    assert c.create(NewTopic("__millrace_offsets"), internal=True).results[0].code == ""
    delete = DeleteTopics((("__millrace_offsets", None),))
    assert admin.delete_topics(c.state, delete).reply.results[0].code == "invalid_topic_name"
    assert admin.delete_topics(c.state, delete, internal=True).records != ()


def test_L20_one_refused_topic_does_not_stop_the_others(c: Control) -> None:
    c.topic("old")
    done = c.create(NewTopic("old"), NewTopic("new"), NewTopic("twice"), NewTopic("twice"), NewTopic("big", 10**6))
    assert [r.code for r in done.results] == [
        "topic_exists", "", "invalid_request", "invalid_request", "invalid_partitions",
    ]
    assert set(c.state.topics_by_name) == {"old", "new"}
    assert done.index == c.state.index


def test_L20_validate_only_writes_nothing(c: Control) -> None:
    message = CreateTopics((NewTopic("t", 3),), validate_only=True)
    decision = admin.create_topics(c.state, message, new_id=lambda: UUID(int=1))
    assert decision.records == ()
    assert (decision.reply.results[0].code, decision.reply.results[0].partitions) == ("", 3)
    assert decision.reply.index == c.state.index


@pytest.mark.parametrize(("partitions", "factor", "code"), [
    (0, -1, "invalid_partitions"), (-2, -1, "invalid_partitions"), (1, 0, "invalid_replication_factor"),
    (limits.PARTITIONS_PER_TOPIC_MAX + 1, 1, "invalid_partitions"),
])
def test_L20_counts_are_checked(c: Control, partitions: int, factor: int, code: str) -> None:
    assert refused(c, NewTopic("t", partitions, factor)).code == code


@pytest.mark.parametrize(("assignment", "code"), [
    ({0: (1, 1)}, "invalid_replica_assignment"), ({0: (1, 2), 1: (1,)}, "invalid_replica_assignment"),
    ({1: (1, 2)}, "invalid_replica_assignment"), ({0: (1, 9)}, "invalid_replica_assignment"),
    ({0: ()}, "invalid_replica_assignment"),
])
def test_L20_a_given_assignment_is_checked(c: Control, assignment: dict[int, tuple[int, ...]], code: str) -> None:
    assert refused(c, NewTopic("t", assignment=assignment)).code == code


def test_L20_assignment_and_counts_exclude_each_other(c: Control) -> None:
    assert refused(c, NewTopic("t", 5, -1, {}, {0: (1,)})).code == "invalid_request"
    assert refused(c, NewTopic("t", -1, 3, {}, {0: (1,)})).code == "invalid_request"


def test_L8_an_assigned_broker_that_is_away_is_not_in_the_isr(c: Control) -> None:
    c.fence(1)
    tp = c.assigned((1, 2, 3))
    assert (c.p(tp).leader, c.p(tp).isr) == (2, (2, 3))
    assert refused(c, NewTopic("u", assignment={0: (1,)})).code == "invalid_replica_assignment"


def test_L20_partitions_grow_only(c: Control) -> None:
    topic_id = c.topic("t", partitions=2, factor=3)

    def grow(total: int, *assignment: tuple[int, ...]) -> AdminResult:
        message = CreatePartitions((NewPartitions("t", total, assignment),))
        return c.do(admin.create_partitions(c.state, message)).results[0]

    assert grow(2).code == "invalid_partitions"
    assert grow(limits.PARTITIONS_PER_TOPIC_MAX + 1).code == "invalid_partitions"
    assert grow(5).code == ""
    assert grow(6, (1, 2)).code == "invalid_replica_assignment"
    assert grow(6, (1, 2, 3), (1, 2, 3)).code == "invalid_replica_assignment"
    assert grow(6, (3, 1, 2)).code == ""
    assert sorted(c.state.topics[topic_id].partitions) == list(range(6))
    assert c.p(TopicPartition(topic_id, 5)).leader == 3
    unknown = admin.create_partitions(c.state, CreatePartitions((NewPartitions("nope", 2),)))
    assert unknown.reply.results[0].code == "unknown_topic_or_partition"
    assert violations(c.state) == []


def test_L20_delete_by_name_and_by_id(c: Control) -> None:
    a, b = c.topic("a"), c.topic("b")
    message = DeleteTopics((("a", None), ("", b), ("", UUID(int=1)), ("nope", None)))
    done = c.do(admin.delete_topics(c.state, message))
    assert [r.code for r in done.results] == ["", "", "unknown_topic_id", "unknown_topic_or_partition"]
    assert [r.name for r in done.results[:2]] == ["a", "b"]
    assert c.state.topics == {}
    assert a != b


def test_L20_configs_are_edited_key_by_key(c: Control) -> None:
    topic_id = c.topic("t", max_message_bytes="1000")

    def alter(*edits: ConfigEdit, **options: bool) -> str:
        message = AlterConfigs(edits, ("t",), **options)
        return c.do(admin.alter_configs(c.state, message)).results[0].code

    assert alter(ConfigEdit("t", "replica.lag.time.max.ms", "9000")) == ""
    assert c.state.topics[topic_id].configs == {"max.message.bytes": "1000", "replica.lag.time.max.ms": "9000"}
    assert alter(ConfigEdit("t", "max.message.bytes", None)) == ""
    assert c.state.topic_config(topic_id, "max.message.bytes") == limits.BATCH_BYTES_MAX
    assert alter(ConfigEdit("t", "max.message.bytes", "x")) == "invalid_topic_config"
    assert alter(ConfigEdit("t", "no.such", None)) == "invalid_topic_config"
    assert alter(ConfigEdit("t", "max.message.bytes", "5"), validate_only=True) == ""
    assert alter(ConfigEdit("t", "max.message.bytes", "7"), replace=True) == ""
    assert c.state.topics[topic_id].configs == {"max.message.bytes": "7"}
    assert alter(replace=True) == ""
    assert c.state.topics[topic_id].configs == {}
    assert alter() == ""
    unknown = AlterConfigs((ConfigEdit("nope", "retention.ms", "1"),))
    assert admin.alter_configs(c.state, unknown).reply.results[0].code == "unknown_topic_or_partition"


def test_L20_a_setting_that_nothing_acts_on_is_refused(c: Control) -> None:
    refusal = refused(c, NewTopic("t", configs={"cleanup.policy": "compact"}))
    assert refusal.code == "invalid_topic_config"
    assert "cleanup.policy=delete is in force" in refusal.message
    topic_id = c.topic("t", cleanup_policy="delete", delete_retention_ms="86400000")
    edit = AlterConfigs((ConfigEdit("t", "delete.retention.ms", "1000"),))
    assert admin.alter_configs(c.state, edit).reply.results[0].code == "invalid_topic_config"
    assert c.state.topic_config(topic_id, "delete.retention.ms") == 86_400_000


def test_L23_retention_is_set_per_topic(c: Control) -> None:
    topic_id = c.topic("t", retention_ms="60000", retention_bytes="1000", segment_ms="5000")
    c.do(admin.alter_configs(c.state, AlterConfigs((ConfigEdit("t", "retention.ms", "-1"),))))
    assert c.state.topics[topic_id].values == {"retention.ms": -1, "retention.bytes": 1000, "segment.ms": 5000}


def test_L3_min_insync_replicas_is_at_most_the_replication_factor(c: Control) -> None:
    refusal = refused(c, NewTopic("t", 1, 2, {"min.insync.replicas": "3"}))
    assert (refusal.code, "more than the 2 replicas" in refusal.message) == ("invalid_topic_config", True)
    given = NewTopic("t", configs={"min.insync.replicas": "2"}, assignment={0: (1,)})
    assert refused(c, given).code == "invalid_topic_config"
    c.topic("t", factor=2, min_insync_replicas="2")
    edit = AlterConfigs((ConfigEdit("t", "min.insync.replicas", "3"),))
    assert admin.alter_configs(c.state, edit).reply.results[0].code == "invalid_topic_config"


def test_L20_producer_ids_are_never_handed_out_twice(c: Control) -> None:
    incarnation = c.state.brokers[1].incarnation
    blocks = [c.do(admin.grant_producer_ids(c.state, AskProducerIds(1, incarnation))) for _ in range(3)]
    assert [b.first for b in blocks] == [0, limits.PRODUCER_ID_BLOCK, 2 * limits.PRODUCER_ID_BLOCK]
    c.up(1)
    with pytest.raises(StaleIncarnation):
        admin.grant_producer_ids(c.state, AskProducerIds(1, incarnation))


def test_L25_a_cluster_has_room_for_so_many_replicas(c: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_PER_BROKER_MAX", 4)
    c.topic("a", partitions=3, factor=3)
    assert refused(c, NewTopic("b", 2, 3)).code == "policy_violation"
    assert c.create(NewTopic("b", 1, 3)).results[0].code == ""
