"""Where the controller is: what the store's silence looks like from outside."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from millrace.errors import StoreUnreachable, Unreachable
from millrace.link.pool import LinkPool
from millrace.log.controller_client import ControllerClient
from millrace.log.stats import BrokerStats
from millrace.model.messages import AskProducerIds, Hello
from millrace.ops.real import real_ports
from millrace.store.contract import Holder
from millrace_sim.store import MemoryStore, MemoryStoreState


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


def hello() -> Hello:
    raise AssertionError("no link is dialled here")


def test_L18_a_store_that_fails_is_logged_once_per_error() -> None:
    async def main() -> None:
        ports = real_ports()
        store = Failing(MemoryStoreState(latency_min_s=0.0, latency_max_s=0.0), ports)
        client = ControllerClient(1, ports, store, LinkPool(hello, ports), None, BrokerStats())
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
