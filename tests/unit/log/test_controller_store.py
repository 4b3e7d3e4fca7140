"""The controller's shell on the embedded store, in real time: what one shell wrote the next one finds [L18]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from millrace.errors import NotController
from millrace.log.controller import ControllerConfig, ControllerShell
from millrace.model.messages import (
    AdminDone,
    CreateTopics,
    Heartbeat,
    HeartbeatOk,
    Message,
    NewTopic,
    Register,
    Registered,
)
from millrace.model.records import Endpoint
from millrace.ops.real import real_ports
from millrace.store import open_store
from millrace.store.contract import Candidate

DEADLINE_S = 20.0


async def ask(shell: ControllerShell, message: Message) -> Message:
    """As soon as the shell holds the office."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await shell.handle(1, message)
            except NotController:
                await asyncio.sleep(0.005)


def test_L18_a_restarted_controller_finds_what_it_wrote(tmp_path: Path) -> None:
    ports = real_ports()

    async def first() -> list[object]:
        store = open_store(f"sqlite:{tmp_path}", ports)
        shell = ControllerShell(store, ports, ControllerConfig(snapshot_every_records=8), me)
        shell.start()
        registered = await ask(shell, register)
        assert isinstance(registered, Registered)
        beat = Heartbeat(1, registered.incarnation, 1, 0.0, registered.index, True, False, 0.0, 0)
        answer = await ask(shell, beat)
        assert isinstance(answer, HeartbeatOk)
        assert not answer.fenced
        for name in ("a", "b"):
            created = await ask(shell, CreateTopics((NewTopic(name, 5, 1),)))
            assert isinstance(created, AdminDone)
            assert created.results[0].code == ""
        assert shell.stats.snapshots >= 1
        assert shell.reign is not None
        state: list[object] = list(shell.reign.state.to_records())
        await shell.stop()
        await store.close()
        return state

    async def second() -> list[object]:
        store = open_store(f"sqlite:{tmp_path}", ports)
        shell = ControllerShell(store, ports, ControllerConfig(), me)
        shell.start()
        again = await ask(shell, register)
        assert isinstance(again, Registered)
        assert shell.reign is not None
        state: list[object] = list(shell.reign.state.to_records())
        await shell.stop()
        await store.close()
        return state

    me = Candidate(1, "127.0.0.1:1", ports.processes.me())
    register = Register(
        1, ports.random.uuid(), Endpoint("127.0.0.1", 1, 2, 3), ports.processes.me(), UUID(int=1), True, False,
        "group", "", "host",
    )
    assert asyncio.run(first()) == asyncio.run(second())
