"""How a capture ends: told so, its place taken, put out; no broker, no database, no Spark."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from millrace.changefeed.capture import Capture, CaptureSettings
from millrace.changefeed.changefeeds import ChangefeedSettings
from millrace.changefeed.members import CaptureInfo, Membership, living
from millrace.errors import MillraceError, StaleIncarnation, Unreachable
from millrace.ops.ports import Ports
from millrace.ops.real import BootClock, RealFileSystem, RealRandom
from millrace.pipeline.session import Place
from millrace_sim.store import MemoryStore, MemoryStoreState
from support_brokers import Machine, OneProcess, until
from support_ports import free_ports
from support_secret import LINK_KEY, LOG_KEY

SESSION_S = 1.0


class Cluster:
    def __init__(self, path: Path) -> None:
        self.path, self.machine, self.state = path, Machine(), MemoryStoreState(clock=BootClock())
        self.ended: dict[int, MillraceError] = {}

    def ports(self) -> Ports:
        return Ports(clock=BootClock(), random=RealRandom(), processes=OneProcess(self.machine), fs=RealFileSystem())

    def store(self, ports: Ports) -> MemoryStore:
        return MemoryStore(self.state, ports, host="here")

    def capture(self, n: int, *, link_port: int, answers_at: int | None = None) -> Capture:
        """`answers_at`: what its lease says of its links, if that is not true."""
        settings = CaptureSettings(
            id=n, address="127.0.0.1:1", bootstrap=("127.0.0.1:1",), spool_dir=str(self.path / f"c{n}"),
            session_s=SESSION_S, tenure_s=0.4, clock_drift_max=0.01, copy_processes=1, copy_on_spark=True,
            log_key=LOG_KEY, link=f"127.0.0.1:{answers_at or link_port}",
            changefeeds=ChangefeedSettings(
                cluster_id=UUID(int=7), link_key=LINK_KEY, log_key=LOG_KEY, bootstrap=("127.0.0.1:1",),
                session_s=SESSION_S, link_host="127.0.0.1", link_port=link_port, spark=lambda: Place(remote="sc://127.0.0.1:1"),
                spark_cores=1))
        ports = self.ports()
        return Capture(settings, ports, self.store(ports), fatal=lambda error: self.ended.__setitem__(n, error))


@asynccontextmanager
async def running(capture: Capture) -> AsyncIterator[Capture]:
    await capture.start()
    try:
        await until(lambda: not capture.not_ready(), "the capture to be ready")
        yield capture
    finally:
        await capture.stop()


def is_listened_on(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_C1_its_lease_tells_where_its_links_are_and_what_proves_its_death(tmp_path: Path) -> None:
    async def body() -> None:
        cluster, (port,) = Cluster(tmp_path), free_ports(1)
        async with running(cluster.capture(0, link_port=port)) as capture:
            (info,) = await living(capture.store)
            assert (info.link, info.process) == (f"127.0.0.1:{port}", capture.ports.processes.me())
            assert is_listened_on(port)
            assert capture.feeds is not None
            await until(lambda: capture.feeds is not None and capture.feeds.coordinator is not None, "its office")
        assert not is_listened_on(port)
        assert await living(capture.store) == []
        assert capture.feeds.coordinator is None

    asyncio.run(body())


def test_C1_who_lost_its_place_says_so_and_leaves_nothing_running(tmp_path: Path) -> None:
    async def body() -> None:
        cluster, (port,) = Cluster(tmp_path), free_ports(1)
        async with running(cluster.capture(0, link_port=port)) as capture:
            ports = cluster.ports()
            info = CaptureInfo(0, capture.membership.info.incarnation + 1, "127.0.0.1:2", 2)
            later = Membership(cluster.store(ports), ports, info, session_s=60.0, lost=lambda error: None)
            cluster.machine.gone.add(capture.ports.processes.me().pid)         # as its successor has it
            await later.start()
            await until(lambda: cluster.ended, "the earlier one to notice")
            assert isinstance(capture.failed, StaleIncarnation)
        assert not is_listened_on(port)
        assert [one.incarnation for one in await living(capture.store)] == [info.incarnation]
        await later.stop()

    asyncio.run(body())


def test_C9_a_capture_that_the_coordinator_does_not_hear_ends_and_says_why(tmp_path: Path) -> None:
    async def body() -> None:
        cluster, (first, second, nobodys) = Cluster(tmp_path), free_ports(3)
        async with (
            running(cluster.capture(0, link_port=first)) as coordinator,
            running(cluster.capture(1, link_port=second, answers_at=nobodys)) as unheard,
        ):
            assert coordinator.reign is not None
            await until(lambda: cluster.ended, "it to be put out", 10 * SESSION_S)
            assert cluster.ended.keys() == {1}
            assert isinstance(unheard.failed, Unreachable)
            assert unheard.feeds is not None
            assert unheard.feeds.member.liveness == "stopping"

    asyncio.run(body())
