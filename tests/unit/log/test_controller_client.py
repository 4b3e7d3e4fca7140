"""Where the controller is: what the store's silence looks like from outside."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from millrace.errors import StoreUnreachable, Unreachable
from millrace.link.pool import LinkPool
from millrace.link.proving import Proving
from millrace.log.controller_client import ControllerClient
from millrace.log.stats import BrokerStats
from millrace.model.ids import BrokerId
from millrace.model.messages import AskProducerIds, Hello, Message, ProducerIds
from millrace.ops.ports import Ports
from millrace.ops.real import real_ports
from millrace.store.contract import Holder
from millrace_sim.store import MemoryStore, MemoryStoreState
from support_secret import LINK_KEY


class Failing(MemoryStore):
    """Fails with these errors, one after the other, the last one for ever; without any it answers."""

    errors: tuple[str, ...] = ()
    asked = 0

    async def holder(self, office: str) -> Holder | None:
        self.asked += 1
        if self.errors:
            why, self.errors = self.errors[0], self.errors[1:] or self.errors
            raise StoreUnreachable(why)
        return await super().holder(office)


class Deposed:
    """The controller in this process: while it answers, another one comes to be known."""

    client: ControllerClient

    async def handle(self, sender: BrokerId, message: Message) -> Message:
        self.client.token = 4
        return ProducerIds(3, 1, 1)

    def hint_holder_lost(self) -> None:
        raise AssertionError("no link is lost here")


def pool(ports: Ports) -> LinkPool:
    return LinkPool(hello, ports, Proving(LINK_KEY, "broker", ports.random))


def hello() -> Hello:
    raise AssertionError("no link is dialled here")


def test_L18_a_store_that_fails_is_logged_once_per_error() -> None:
    async def main() -> None:
        ports = real_ports()
        store = Failing(MemoryStoreState(latency_min_s=0.0, latency_max_s=0.0), ports)
        client = ControllerClient(1, ports, store, pool(ports), None, BrokerStats())
        with capture_logs() as logs:
            store.errors = ("refused", "refused", "timed out")
            with pytest.raises(Unreachable):
                await client.ask(AskProducerIds(1, 1), 0.4)
        await client.close()
        assert store.asked > 3
        assert [entry["error"] for entry in logs] == ["refused", "timed out"]
        assert client.trouble == "timed out"
        store.errors = ()
        with pytest.raises(Unreachable):
            await client.ask(AskProducerIds(1, 1), 0.1)
        await client.close()
        assert client.trouble == ""

    asyncio.run(main())


def test_L18_an_answer_of_a_former_controller_is_asked_for_again_and_is_no_refusal() -> None:
    async def main() -> None:
        ports, local = real_ports(), Deposed()
        store = MemoryStore(MemoryStoreState(latency_min_s=0.0, latency_max_s=0.0), ports)
        local.client = client = ControllerClient(1, ports, store, pool(ports), local, BrokerStats())
        client.id, client.token = 1, 3
        with pytest.raises(Unreachable) as told:
            await client.ask(AskProducerIds(1, 1), 5.0)
        assert told.value.retriable
        assert client.token == 4
        await client.close()

    asyncio.run(main())
