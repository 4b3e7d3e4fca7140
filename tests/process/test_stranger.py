"""As an unauthenticated network peer of running brokers: everything that is ours is tried, all of it is refused, and
nothing has changed afterwards [A10, L25]."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from millrace.errors import SecretNotProved
from millrace.log.client import LogClient, PlainClient
from millrace.ops.cluster_secret import KAFKA, LINK, ClusterSecret
from millrace.wire import links
from millrace.wire.proof import ProofRefused
from millrace.wire.records import Record
from support_cluster import Cluster
from support_gate import INTERNAL, attempts, topic_names
from support_kafka import Wire
from support_links import RawPeer, ask, replace_hello
from support_secret import LOG_KEY

WRONG = ClusterSecret("a guess of a stranger, thirty-two characters or more")


def test_A10_a_stranger_at_the_kafka_and_link_ports_reaches_nothing_of_ours() -> None:
    with Cluster(1) as cluster:
        bootstrap = cluster.bootstrap.split(",")
        broker = cluster.brokers[0]
        with PlainClient(bootstrap, key=LOG_KEY) as own:
            own.create_topic("open", partitions=1)
            own.create_topic(INTERNAL, partitions=1)
            own.append(INTERNAL, 0, [Record(b"ours")])
            asyncio.run(_settled(broker.kafka_port))
            before = _state(own)
            asyncio.run(_tries(broker.kafka_port, own.topic(INTERNAL).id))
            asyncio.run(_links(broker.link_port, cluster.cluster_id))
            assert _state(own) == before
            assert own.append("open", 0, [Record(b"go on")]) == 0
        counted = _counters(cluster.http(0, "/metrics"))
        assert counted["millrace_private_calls_refused_total"] >= 4
        assert counted["millrace_client_proofs_refused_total"] >= 2
        assert counted['millrace_link_refusals_total{reason="wrong_secret"}'] == 1
        assert counted['millrace_link_refusals_total{reason="not_a_proof"}'] == 3
        assert counted['millrace_link_refusals_total{reason="foreign_cluster"}'] == 1


def _counters(text: str) -> dict[str, float]:
    lines = [line.split() for line in text.splitlines() if line.startswith("millrace_")]
    return {name: float(value) for name, value in lines}


def _state(own: PlainClient) -> Any:
    return own.topics(), own.ends(INTERNAL, 0), own.ends("open", 0), own.topic(INTERNAL), own.topic("open")


async def _settled(port: int) -> None:
    """The first question for a coordinator makes the topic of groups, whoever asks it."""
    wire = await Wire.connect(port)
    await wire.call("FindCoordinator", {"key_type": 0, "coordinator_keys": ["any"]})
    async with asyncio.timeout(60):
        while (await wire.call("ListGroups"))["error_code"]:
            await asyncio.sleep(0.05)
    await wire.close()


async def _tries(port: int, topic_id: Any) -> None:
    wire = await Wire.connect(port)
    for one in attempts(topic_id):
        answer = await wire.call(one.call, one.fields, version=one.version)
        assert one.is_refused(answer), f"{one.title}: {answer}"
    assert INTERNAL not in topic_names(await wire.call("Metadata", {"topics": None}))
    wire.send("Produce", {"acks": 0, "timeout_ms": 1000, "topics": [
        {"name": INTERNAL, "partitions": [{"index": 0, "records": b"x"}]}]})
    assert await wire.closed_by_peer()
    await wire.close()
    for key in (WRONG.proof_key(KAFKA), WRONG.proof_key(LINK)):
        async with LogClient([f"127.0.0.1:{port}"], key=key, deadline_s=5) as stranger:
            with pytest.raises(SecretNotProved):
                await stranger.topic(INTERNAL)


async def _links(port: int, cluster_id: str) -> None:
    hello = replace_hello(cluster_id=UUID(cluster_id), member=0, incarnation=99)
    for attack in (b"".join(links.encode_message(links.HELLO, 0, hello)),
                   b"".join(links.encode_message(links.REQUEST, 1, ask(1))),
                   b"".join(links.frame(links.FETCH, 0, [b"\0" * 20]))):
        async with await RawPeer.connect(port) as raw:
            raw.writer.write(attack)
            raw.writer.write_eof()
            assert await raw.is_closed()
    for said in (hello, replace_hello(member=5)):                # the right cluster with a guess; another cluster
        async with await RawPeer.connect(port) as raw:
            with pytest.raises(ProofRefused):
                await raw.prove(key=WRONG.proof_key(LINK), hello=said)
