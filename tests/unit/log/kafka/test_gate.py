"""Private calls and internal topics are for connections that have proved the cluster's secret, and for no others,
whatever they call themselves [A10, L25]."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.errors import (
    ClusterNotAuthorized,
    InvalidOption,
    InvalidTopicName,
    SecretNotProved,
)
from millrace.log.client import LogClient
from millrace.ops.cluster_secret import KAFKA, LINK, ClusterSecret
from millrace.pipeline.datasource.options import parse_options
from millrace.pipeline.datasource.secret import explained, with_key
from millrace.wire.kafka import apis
from millrace.wire.proof import NONCE_BYTES, Dialler, ProofRefused, Side
from millrace.wire.records import Record
from support_gate import INTERNAL, attempts, codes, topic_names
from support_kafka import Node, Wire, batch_of, one_broker
from support_secret import LOG_KEY, SECRET, secret_file, write_secret

OTHER_KEY = ClusterSecret("another secret of at least 32 characters").proof_key(KAFKA)


def run(tmp_path: Path, test: Callable[[Node, UUID], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with one_broker(tmp_path) as node, LogClient([f"127.0.0.1:{node.port}"], key=LOG_KEY) as own:
            await own.create_topic(INTERNAL, partitions=1)
            await own.append(INTERNAL, 0, [Record(b"first")])
            await test(node, (await own.topic(INTERNAL)).id)
            assert await own.ends(INTERNAL, 0) == (0, 1), "nothing was written or cut"

    asyncio.run(main())


def test_A10_what_is_ours_is_refused_to_a_stranger_and_open_to_us(tmp_path: Path) -> None:
    async def test(node: Node, topic_id: UUID) -> None:
        own = await node.own()
        await own.create("open")
        await own.call("FindCoordinator", {"key_type": 0, "coordinator_keys": ["any"]})
        await settled(own)
        for one in attempts(topic_id):
            answer = await (await node.connect()).call(one.call, one.fields, version=one.version)
            assert one.is_refused(answer), f"{one.title}: {answer}"
            if not one.harmful:
                answer = await own.call(one.call, one.fields, version=one.version)
                assert not set(codes(answer)) & {29, 30, 31, 58}, f"{one.title}: {answer}"
        assert INTERNAL in topic_names(await own.call("Metadata", {"topics": None}))

    run(tmp_path, test)


async def settled(wire: Wire) -> None:
    """The coordinators of groups serve."""
    async with asyncio.timeout(20):
        while (await wire.call("ListGroups"))["error_code"]:
            await asyncio.sleep(0.02)


def test_A10_a_client_id_opens_nothing(tmp_path: Path) -> None:
    async def test(node: Node, topic_id: UUID) -> None:
        wire = await node.connect()
        call = {"call": b"\x01"}
        wire.writer.write(apis.encode_request("Floors", 0, 1, call, client_id=apis.OWN_CLIENT_ID + "spark"))
        _, answer = apis.decode_response("Floors", 0, await wire.frame())
        assert answer["error_code"] == ClusterNotAuthorized.kafka_code
        assert node.server.stats.private_refused == 1

    run(tmp_path, test)


def test_A10_a_write_without_acks_to_an_internal_topic_ends_its_connection(tmp_path: Path) -> None:
    async def test(node: Node, topic_id: UUID) -> None:
        wire = await node.connect()
        partitions = [{"index": 0, "records": batch_of(b"x")}]
        wire.send("Produce", {"acks": 0, "timeout_ms": 1000, "topics": [{"name": INTERNAL, "partitions": partitions}]})
        assert await wire.closed_by_peer()

    run(tmp_path, test)


def test_A10_internal_topics_are_in_no_stranger_s_list(tmp_path: Path) -> None:
    async def test(node: Node, topic_id: UUID) -> None:
        for version in range(13):
            wanted: Any = [] if version == 0 else None
            told = await (await node.connect()).call("Metadata", {"topics": wanted}, version=version)
            assert topic_names(told) == []
        assert INTERNAL in topic_names(await (await node.own()).call("Metadata", {"topics": None}))

    run(tmp_path, test)


def test_A10_settings_of_a_broker_hold_no_key(tmp_path: Path) -> None:
    async def test(node: Node, topic_id: UUID) -> None:
        resource = {"resource_type": 4, "resource_name": "1", "keys": None}
        answer = await (await node.connect()).call("DescribeConfigs", {"resources": [resource]})
        names = {entry["name"] for entry in answer["results"][0]["configs"]}
        assert "lease_s" in names
        assert not [name for name in names if "key" in name or "secret" in name]

    run(tmp_path, test)


# -- the proof ---------------------------------------------------------------------------------------------------------
async def _messages(wire: Wire, proof: Dialler) -> dict[str, Any]:
    """The answer that ends the proof."""
    message = proof.opening()
    while True:
        answer = await wire.call("Prove", {"message": message})
        if answer["error_code"]:
            return answer
        message = proof.receive(bytes(answer["message"]))
        if not message:
            return answer


@pytest.mark.parametrize("key", [OTHER_KEY, SECRET.proof_key(LINK)])
def test_A10_another_key_proves_nothing_and_ends_the_connection(tmp_path: Path, key: Any) -> None:
    async def test(node: Node, topic_id: UUID) -> None:
        wire = await node.connect()
        proof = Dialler(key.reveal(), apis.PROOF_PURPOSE, Side(), b"n" * NONCE_BYTES)
        answer = await _messages(wire, proof)
        assert answer["error_code"] == SecretNotProved.kafka_code
        assert "cluster.secret_file" in answer["error_message"]
        with pytest.raises(ProofRefused):
            proof.receive(bytes(answer["message"]))
        assert await wire.closed_by_peer()
        assert node.server.stats.proofs_refused == 1

    run(tmp_path, test)


@pytest.mark.parametrize("message", [b"", b"\x01", b"\x01" * 61, b"\x03" + b"m" * 32, b"\x05" * 18])
def test_A10_a_message_that_is_no_proof_ends_the_connection(tmp_path: Path, message: bytes) -> None:
    async def test(node: Node, topic_id: UUID) -> None:
        wire = await node.connect()
        answer = await wire.call("Prove", {"message": message})
        assert answer["error_code"] == SecretNotProved.kafka_code
        assert await wire.closed_by_peer()

    run(tmp_path, test)


def test_A10_a_recorded_proof_opens_no_second_connection(tmp_path: Path) -> None:
    async def test(node: Node, topic_id: UUID) -> None:
        proof, first, again = Dialler(LOG_KEY.reveal(), apis.PROOF_PURPOSE, Side(), b"n" * NONCE_BYTES), \
            await node.connect(), await node.connect()
        opening = proof.opening()
        answer = proof.receive(bytes((await first.call("Prove", {"message": opening}))["message"]))
        await again.call("Prove", {"message": opening})
        assert (await again.call("Prove", {"message": answer}))["error_code"] == SecretNotProved.kafka_code
        assert (await first.call("Prove", {"message": answer}))["error_code"] == 0

    run(tmp_path, test)


# -- our own client ----------------------------------------------------------------------------------------------------
def test_A10_a_client_with_another_key_is_told_so_at_once(tmp_path: Path) -> None:
    async def test(node: Node, topic_id: UUID) -> None:
        async with LogClient([f"127.0.0.1:{node.port}"], key=OTHER_KEY, deadline_s=600) as client, asyncio.timeout(20):
            with pytest.raises(SecretNotProved):
                await client.topic(INTERNAL)
            with pytest.raises(SecretNotProved):
                await client.fence("open", 0, writer_id=1 << 40, epoch=1)

    run(tmp_path, test)


def test_A10_a_client_without_a_key_is_an_ordinary_one(tmp_path: Path) -> None:
    async def test(node: Node, topic_id: UUID) -> None:
        async with LogClient([f"127.0.0.1:{node.port}"], deadline_s=600) as client, asyncio.timeout(20):
            await client.create_topic("open", partitions=1)
            await client.append("open", 0, [Record(b"x")])
            with pytest.raises(InvalidTopicName, match="secret"):
                await client.append(INTERNAL, 0, [Record(b"x")])
            with pytest.raises(InvalidTopicName):
                await client.fetch({(INTERNAL, 0): 0})
            with pytest.raises(ClusterNotAuthorized):
                await client.fence("open", 0, writer_id=1 << 40, epoch=1)

    run(tmp_path, test)


# -- the data source ---------------------------------------------------------------------------------------------------
GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:1", "source": "s", "table": "t"}


def test_A10_the_data_source_finds_the_key_by_option_environment_or_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = parse_options(GIVEN)
    with pytest.raises(InvalidOption, match=r"option secretFile is missing.*MILLRACE_SECRET_FILE"):
        with_key(options, {})
    named = parse_options({**GIVEN, "secretFile": secret_file()})
    assert with_key(named, {}).log_key == LOG_KEY
    assert with_key(options, {"MILLRACE_SECRET_FILE": secret_file()}).log_key == LOG_KEY
    write_secret(tmp_path / ".millrace" / "secret")
    assert with_key(options, {}).log_key == LOG_KEY
    (tmp_path / ".millrace" / "secret").chmod(0o644)
    with pytest.raises(InvalidOption, match=r"option secretFile.*chmod 600"):
        with_key(options, {})


def test_A10_options_with_a_key_show_neither_key_nor_secret() -> None:
    options = with_key(parse_options({**GIVEN, "secretFile": secret_file()}), {})
    shown = f"{options} {options!r} {options.log_key}"
    assert LOG_KEY.reveal().hex() not in shown
    assert repr(LOG_KEY.reveal()) not in shown
    assert str(LOG_KEY.reveal())[2:-1] not in shown


def test_A10_a_wrong_secret_of_a_query_names_the_option() -> None:
    with pytest.raises(InvalidOption, match=r"option secretFile: it is not the secret of these brokers"), explained():
        raise SecretNotProved("x")
