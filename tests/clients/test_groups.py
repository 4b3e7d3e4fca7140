"""Consumer groups of unmodified clients against three brokers [L20, L21]."""

from __future__ import annotations

from itertools import count
from urllib.error import HTTPError

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from support_cluster import Cluster, wait_for
from support_groups import MEMBERS, ConfluentMember, Member, closing, committed, coordinator_of, send

_names = count()


@pytest.fixture
def group() -> str:
    return f"readers-{next(_names)}"


def shares(*members: Member) -> bool:
    """Each has something, together they have all, nobody has what another has."""
    held = [p for member in members for p in member.assigned]
    return sorted(held) == [0, 1, 2] and all(member.assigned for member in members)


@pytest.mark.parametrize("client", MEMBERS)
def test_L20_two_consumers_share_the_partitions_and_one_takes_over(
    cluster: Cluster, topic: str, group: str, client: str
) -> None:
    first = MEMBERS[client](cluster, group, topic)
    with closing(first):
        second = MEMBERS[client](cluster, group, topic)
        with closing(second):
            wait_for(lambda: shares(first, second), "both to have a share", 60)
            send(cluster, topic, [b"%d" % n for n in range(30)])
            wait_for(lambda: len(first.read) + len(second.read) == 30, "every record", 60)
            assert first.read
            assert second.read
        wait_for(lambda: first.assigned == {0, 1, 2}, "the one that stays to take over")
        send(cluster, topic, [b"%d" % n for n in range(30, 60)])
        wait_for(lambda: len(first.read) + len(second.read) >= 60, "the rest", 60)
    values = [value for member in (first, second) for _, value in member.read]
    assert sorted(map(int, values)) == list(range(60))  # nothing twice: the one that left had committed


def test_L20_two_libraries_share_a_group(cluster: Cluster, topic: str, group: str) -> None:
    first = ConfluentMember(cluster, group, topic, **{"partition.assignment.strategy": "roundrobin"})
    second = MEMBERS["kafka-python"](cluster, group, topic)
    with closing(first, second):
        wait_for(lambda: shares(first, second), "both to have a share", 60)


@pytest.mark.parametrize("client", MEMBERS)
def test_L21_an_auto_committing_consumer_closes_quickly_and_the_next_one_goes_on_behind_it(
    cluster: Cluster, topic: str, group: str, client: str
) -> None:
    send(cluster, topic, [b"a", b"b", b"c"])
    member = MEMBERS[client](cluster, group, topic)
    with closing(member):
        wait_for(lambda: len(member.read) == 3, "three records", 60)
    assert member.close_s < 2
    assert committed(cluster, group, topic) == {0: 1, 1: 1, 2: 1}
    send(cluster, topic, [b"d", b"e", b"f"])
    other = MEMBERS[client](cluster, group, topic)
    with closing(other):
        wait_for(lambda: len(other.read) == 3, "three more", 60)
    assert sorted(value for _, value in other.read) == [b"d", b"e", b"f"]


def test_L20_a_static_member_comes_back_without_a_rebalance(cluster: Cluster, topic: str, group: str) -> None:
    stays = ConfluentMember(cluster, group, topic, **{"group.instance.id": "one"})
    with closing(stays):
        leaves = ConfluentMember(cluster, group, topic, **{"group.instance.id": "two"})
        with closing(leaves):
            wait_for(lambda: shares(stays, leaves), "both to have a share", 60)
        held, assignments = set(stays.assigned), stays.assignments
        back = ConfluentMember(cluster, group, topic, **{"group.instance.id": "two"})
        with closing(back):
            wait_for(lambda: shares(stays, back), "the same shares again", 60)
        assert (stays.assigned, stays.assignments) == (held, assignments)


def test_L20_a_topic_made_again_under_the_name_of_a_deleted_one_is_another_topic_to_every_group(
    cluster: Cluster, topic: str, group: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    send(cluster, topic, [b"old"] * 99)
    member = ConfluentMember(cluster, group, topic)
    with closing(member):
        wait_for(lambda: len(member.read) == 99, "every record", 60)
    assert committed(cluster, group, topic) == {0: 33, 1: 33, 2: 33}
    admin.delete_topics([topic])[topic].result(30)
    (offsets,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    assert offsets.result(30).topic_partitions == []        # a tool that asked for their ends would fail
    cluster.create_topic(topic, partitions=3, replication_factor=3)
    assert set(committed(cluster, group, topic).values()) == {-1001}
    send(cluster, topic, [b"new"] * 150)
    later = ConfluentMember(cluster, group, topic)
    with closing(later):
        wait_for(lambda: len(later.read) == 150, "all that the new topic has", 60)
    assert {value for _, value in later.read} == {b"new"}


# -- tools -------------------------------------------------------------------------------------------------------------
def test_L20_groups_are_listed_described_and_deleted_by_confluent(cluster: Cluster, topic: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    send(cluster, topic, [b"a", b"b", b"c"])
    member = ConfluentMember(cluster, group, topic, **{"client.id": "who"})
    with closing(member):
        wait_for(lambda: len(member.read) == 3, "three records", 60)
        listed = {g.group_id: g for g in admin.list_consumer_groups().result(30).valid}
        assert listed[group].state.name == "STABLE"
        described = admin.describe_consumer_groups([group])[group].result(30)
        assert described.coordinator.id == coordinator_of(cluster, group)
        (only,) = described.members
        assert (only.client_id, len(only.assignment.topic_partitions)) == ("who", 3)
        for broker in cluster.brokers:                  # whichever is asked
            shown = cluster.http(broker, f"/api/v2/groups/{group}")
            assert (shown["state"], shown["coordinator"]) == ("Stable", described.coordinator.id)
            assert [m["client_id"] for m in shown["members"]] == ["who"]
            (listed_here,) = [g for g in cluster.http(broker, "/api/v2/groups")["items"] if g["group"] == group]
            assert listed_here["members"] == 1
        with pytest.raises(KafkaException, match="NON_EMPTY"):
            admin.delete_consumer_groups([group])[group].result(30)
    (offsets,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    assert {(p.partition, p.offset) for p in offsets.result(30).topic_partitions} == {(0, 1), (1, 1), (2, 1)}
    back = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 0)])
    admin.alter_consumer_group_offsets([back])[group].result(30)
    assert committed(cluster, group, topic) == {0: 1, 1: 0, 2: 1}
    admin.delete_consumer_groups([group])[group].result(30)
    assert group not in {g.group_id for g in admin.list_consumer_groups().result(30).valid}
    assert set(committed(cluster, group, topic).values()) == {-1001}
    for broker in cluster.brokers:
        with pytest.raises(HTTPError, match="404"):
            cluster.http(broker, f"/api/v2/groups/{group}")


def test_L20_groups_are_listed_and_described_by_kafka_python(cluster: Cluster, topic: str, group: str) -> None:
    send(cluster, topic, [b"a", b"b", b"c"])
    member = MEMBERS["kafka-python"](cluster, group, topic)
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        with closing(member):
            wait_for(lambda: len(member.read) == 3, "three records", 60)
            assert group in str(admin.list_groups())
            assert "Stable" in str(admin.describe_groups([group]))
        offsets = admin.list_group_offsets(group)[group]
        assert {(p.partition, o.offset) for p, o in offsets.items()} == {(0, 1), (1, 1), (2, 1)}
    finally:
        admin.close()


# -- harm --------------------------------------------------------------------------------------------------------------
def test_L21_commits_survive_a_kill_of_the_coordinator_and_of_all_brokers() -> None:
    with Cluster(3) as cluster:
        cluster.create_topic("t", partitions=3, replication_factor=3)
        send(cluster, "t", [b"%d" % n for n in range(30)])
        member = ConfluentMember(cluster, "g", "t", **{"auto.commit.interval.ms": 200})
        with closing(member):
            wait_for(lambda: len(member.read) == 30, "every record", 60)
            wait_for(lambda: committed(cluster, "g", "t") == {0: 10, 1: 10, 2: 10}, "all to be committed", 60)
            assignments = member.assignments
            killed = coordinator_of(cluster, "g")
            cluster.kill(killed)
            wait_for(lambda: coordinator_of(cluster, "g") not in (killed, -1), "another coordinator", 60)
            assert committed(cluster, "g", "t") == {0: 10, 1: 10, 2: 10}
            send(cluster, "t", [b"%d" % n for n in range(30, 60)])
            wait_for(lambda: len(member.read) == 60, "the rest, read by the same member", 60)
            wait_for(lambda: committed(cluster, "g", "t") == {0: 20, 1: 20, 2: 20}, "them to be committed", 60)
            assert member.assignments == assignments    # the new coordinator knows its members
            cluster.kill_all()
            for broker in cluster.brokers:
                cluster.start_broker(broker)
            cluster.wait_ready()
            assert committed(cluster, "g", "t") == {0: 20, 1: 20, 2: 20}
            send(cluster, "t", [b"%d" % n for n in range(60, 90)])
            wait_for(lambda: len(member.read) == 90, "what came after the restart", 60)
        assert sorted(int(value) for _, value in member.read) == list(range(90))
