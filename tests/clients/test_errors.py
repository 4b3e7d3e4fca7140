"""What a client is told while replicas are missing or the wrong broker is asked [L15, L20]."""

from __future__ import annotations

import socket
import struct
from typing import Any

from millrace.wire.kafka import apis
from millrace.wire.records import Record, build_batch
from support_cluster import BrokerProcess, Cluster

VERSION = 10     # the first that names the leader along with the refusal


def produce(broker: BrokerProcess, topic: str, *, acks: int = -1, timeout_ms: int = 30_000) -> dict[str, Any]:
    """The whole answer of one Produce to exactly this broker."""
    partitions = [{"index": 0, "records": bytes(build_batch([Record(b"x")]))}]
    fields = {"acks": acks, "timeout_ms": timeout_ms, "topics": [{"name": topic, "partitions": partitions}]}
    with socket.create_connection((broker.host, broker.kafka_port), timeout=60) as conn, conn.makefile("rb") as answer:
        conn.sendall(apis.encode_request("Produce", VERSION, 1, fields))
        (size,) = struct.unpack(">I", answer.read(4))
        return apis.decode_response("Produce", VERSION, answer.read(size))[1]


def code(broker: BrokerProcess, topic: str, **more: int) -> int:
    return int(produce(broker, topic, **more)["topics"][0]["partitions"][0]["error_code"])


def test_L15_a_follower_refuses_a_write_and_names_the_leader(cluster: Cluster, topic: str) -> None:
    leader = cluster.leader_of(topic, 0)
    follower = next(broker for broker in cluster.brokers if broker != leader)
    answer = produce(cluster.brokers[follower], topic)
    part = answer["topics"][0]["partitions"][0]
    assert part["error_code"] == 6
    assert part["current_leader"]["leader_id"] == leader
    assert [(node["node_id"], node["port"]) for node in answer["node_endpoints"]] == [
        (leader, cluster.brokers[leader].kafka_port)
    ]


def test_L20_errors_of_acks_all_while_a_replica_is_missing() -> None:
    with Cluster(3) as cluster:
        cluster.create_topic("t", replication_factor=3, configs={"min.insync.replicas": "3"})
        leader = cluster.leader_of("t")
        controller = cluster.controller()
        missing = next(broker for broker in cluster.brokers if broker not in (leader, controller))
        entry = cluster.brokers[leader]
        assert code(entry, "t") == 0
        cluster.pause(missing)
        assert code(entry, "t", timeout_ms=200) == 7      # written, not known to be committed
        assert code(entry, "t") == 20                     # written, then the replica was given up
        cluster.wait_for(lambda: len(cluster.partition("t", 0)["isr"]) == 2, "the ISR without the missing one")
        assert code(entry, "t") == 19                     # not written
        assert code(entry, "t", acks=1) == 0
        cluster.resume(missing)
        cluster.wait_for(lambda: len(cluster.partition("t", 0)["isr"]) == 3, "the replica to be back in sync")
        assert code(entry, "t") == 0
