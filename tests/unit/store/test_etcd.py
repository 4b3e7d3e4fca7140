"""etcd passes the contract, and keeps its own promises: bounded calls, endpoints in turn, nothing torn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest

from millrace import errors, limits
from millrace.ops.ports import Ports
from millrace.ops.real import real_ports
from millrace.store import open_store
from millrace.store.contract import Store
from millrace.store.etcd import parse_url
from millrace.store.etcd_client import RPC_S, EtcdClient, delete, get, put
from support_etcd import EtcdServer
from support_ports import free_ports
from unit.store.contract_suite import OFFICE, TTL_S, ContractSuite, World, candidate, held, run, soon

_prefixes = count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(str(tmp_path_factory.mktemp("etcd")))
    server.start()
    yield server
    server.stop()


@dataclass
class EtcdWorld(World):
    address: str = ""
    prefix: str = ""
    clock_is_ours: bool = False

    def _open(self, ports: Ports) -> Store:
        return open_store(f"etcd://{self.address}{self.prefix}", ports)

    async def outlive(self, store: Store, office: str, ttl_s: float) -> None:
        async def is_vacant() -> bool:
            return (await held(store, office)).vacant

        await soon(is_vacant)


@pytest.fixture
def world(server: EtcdServer) -> EtcdWorld:
    return EtcdWorld(address=server.address, prefix=f"/test-{next(_prefixes)}")


class TestContract(ContractSuite):
    pass


async def _raw(world: EtcdWorld, *operations: object) -> list[bytes]:
    client = EtcdClient([world.address])
    try:
        answer = await client.write([], operations)
        return [kv.value for part in answer.ranges for kv in part]
    finally:
        await client.close()


def test_L18_an_unreachable_store_is_a_retriable_error_within_the_time_of_a_call() -> None:
    world = EtcdWorld(address=f"127.0.0.1:{free_ports(1)[0]}", prefix="/none")

    async def body() -> None:
        one = world.open(1)
        acquire, watch = one.acquire(OFFICE, candidate(1), 1.0), one.watch(OFFICE, 0, 1.0)
        for call in (one.holder(OFFICE), one.leases(), acquire, watch):
            began = time.monotonic()
            with pytest.raises(errors.StoreUnreachable) as raised:
                await call
            assert raised.value.retriable
            assert time.monotonic() - began < limits.STORE_CALL_S + 1

    run(world, body)


def test_L18_a_server_that_does_not_answer_is_a_retriable_error_within_the_time_of_a_call(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    server = EtcdServer(str(tmp_path_factory.mktemp("etcd-paused")))
    server.start()
    world = EtcdWorld(address=server.address, prefix="/paused")

    async def body() -> None:
        one = world.open(1)
        token = await one.acquire(OFFICE, candidate(1), 60.0)
        server.pause()
        began = time.monotonic()
        calls = [one.append(OFFICE, token, 0, [b"x"]), one.renew(OFFICE, token, 60.0), one.read(OFFICE, 0, 1)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer).__name__ for answer in answers] == ["StoreUnreachable"] * 3
        assert time.monotonic() - began < limits.STORE_CALL_S
        server.resume()
        await soon(lambda: _answers(one, token))

    try:
        run(world, body)
    finally:
        server.resume()
        server.stop()


def test_L18_a_call_of_several_round_trips_is_bounded_as_a_whole(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt may take longer than what is left of the call."""
    server = EtcdServer(str(tmp_path_factory.mktemp("etcd-slow")))
    server.start()
    world = EtcdWorld(address=server.address, prefix="/slow")
    monkeypatch.setattr("millrace.limits.STORE_CALL_S", 0.4)

    async def body() -> None:
        one = world.open(1)
        token = await one.acquire(OFFICE, candidate(1), 60.0)
        server.pause()
        for call in (
            one.acquire(OFFICE, candidate(1), 60.0),
            one.renew(OFFICE, token, 60.0),
            one.save_snapshot(OFFICE, token, 0, b""),
            one.load_snapshot(OFFICE),
            one.lease("m", 1, 60.0, b""),
            one.leases(),
        ):
            began = time.monotonic()
            with pytest.raises(errors.StoreUnreachable, match="within"):
                await call
            assert time.monotonic() - began < RPC_S

    try:
        run(world, body)
    finally:
        server.resume()
        server.stop()


async def _answers(store: Store, token: int) -> bool:
    """Whether the paused append happened or not, the history says so and goes on without a gap."""
    try:
        records = await store.read(OFFICE, 0, 10)
        return await store.append(OFFICE, token, len(records), [b"y"]) == len(records) + 1
    except (errors.StoreUnreachable, errors.IndexConflict):
        return False


def test_L18_a_dead_endpoint_costs_one_write_and_no_read(world: EtcdWorld) -> None:
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    living, world.address = world.address, f"{dead},{world.address}"

    async def body() -> None:
        client = EtcdClient([dead, living])
        with pytest.raises(errors.StoreUnreachable):
            await client.grant_lease(1)
        assert await client.grant_lease(1) > 0
        await client.close()
        assert await world.open(1).acquire(OFFICE, candidate(1), TTL_S) == 1

    run(world, body)


def test_L18_a_snapshot_that_was_never_named_does_not_count_and_goes_with_the_next(world: EtcdWorld) -> None:
    async def body() -> None:
        one = world.open(1)
        token = await one.acquire(OFFICE, candidate(1), 3600.0)
        await one.append(OFFICE, token, 0, [b"1", b"2"])
        await one.save_snapshot(OFFICE, token, 1, b"good")
        chunk = f"{world.prefix}/o/{OFFICE}/snapshot/deadbeef/000000".encode()
        await _raw(world, put(chunk, b"torn"))
        assert await one.load_snapshot(OFFICE) == (1, b"good")
        await one.save_snapshot(OFFICE, token, 2, b"better")
        assert await one.load_snapshot(OFFICE) == (2, b"better")
        assert await _raw(world, get(chunk)) == []

    run(world, body)


def test_L18_an_append_is_one_key_so_it_cannot_be_torn(world: EtcdWorld) -> None:
    async def body() -> None:
        one = world.open(1)
        token = await one.acquire(OFFICE, candidate(1), 3600.0)
        await one.append(OFFICE, token, 0, [b"%d" % n for n in range(2000)])
        base = f"{world.prefix}/o/{OFFICE}/log"
        assert len(await _raw(world, get(f"{base}/".encode(), f"{base}0".encode()))) == 1

    run(world, body)


def test_L19_newer_formats_are_refused(world: EtcdWorld) -> None:
    async def body() -> None:
        one = world.open(1)
        await one.grant(OFFICE, candidate(1), 1)
        await one.append(OFFICE, 1, 0, [b"x"])
        await _raw(world, put(f"{world.prefix}/o/{OFFICE}/log/{1:016x}".encode(), b"\x02whatever"))
        with pytest.raises(errors.NewerFormat):
            await one.read(OFFICE, 0, 10)
        await _raw(world, put(f"{world.prefix}/o/{OFFICE}/state".encode(), b'{"format": 2, "token": "new"}'))
        with pytest.raises(errors.NewerFormat):
            await one.holder(OFFICE)

    run(world, body)


def test_L18_a_change_by_others_behind_a_known_view_is_noticed(world: EtcdWorld) -> None:
    """A store that remembers where an office stood must not refuse, or write, by that memory."""

    async def body() -> None:
        one, two = world.open(1), world.open(1)
        token = await one.acquire(OFFICE, candidate(1), 3600.0)
        assert await one.append(OFFICE, token, 0, [b"1"]) == 1
        assert await two.append(OFFICE, token, 1, [b"2"]) == 2
        assert await one.append(OFFICE, token, 2, [b"3"]) == 3
        with pytest.raises(errors.IndexConflict):
            await two.append(OFFICE, token, 2, [b"4"])

    run(world, body)


def test_L18_without_its_key_a_tenure_is_over(world: EtcdWorld) -> None:
    async def body() -> None:
        one, two = world.open(1), world.open(2)
        token = await one.acquire(OFFICE, candidate(1), 3600.0)
        await _raw(world, delete(f"{world.prefix}/o/{OFFICE}/tenure".encode()))
        assert await two.acquire(OFFICE, candidate(2), TTL_S) == token + 1

    run(world, body)


@pytest.mark.parametrize(
    "url",
    ["etcd:host:1/x", "etcd://", "etcd://host/x", "etcd://host:0/x", "etcd://a:1,,b:2/x", "mysql://x", "sqlite:", ""],
)
def test_C1_a_bad_store_url_is_a_configuration_error(url: str) -> None:
    with pytest.raises(errors.ConfigError, match="use "):
        open_store(url, real_ports())


def test_C1_store_urls() -> None:
    assert parse_url("etcd://a:1,b:2/x/y/") == (["a:1", "b:2"], "/x/y")
    assert parse_url("etcd://a:1") == (["a:1"], "/millrace")
