"""The whole kit under ordinary asyncio code: streams run on it, and a seed is a run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from millrace.ops.ports import Ports
from millrace_sim.faults import Faults, Points
from millrace_sim.kit import Sim

ROOT = Path(__file__).parents[3]


def echo_world(seed: int) -> tuple[int, int]:
    """Three clients talk to one echo server by streams, over cuts, pauses and a crash."""
    sim = Sim(seed)
    sim.net.loss = 0.05
    replies = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(line)
                await writer.drain()
        except (ConnectionError, TimeoutError):
            pass
        finally:
            writer.close()

    async def server(ports: Ports) -> None:
        async with await asyncio.start_server(serve, "0.0.0.0", 7000) as listening:
            await listening.serve_forever()

    async def client(ports: Ports) -> None:
        nonlocal replies
        while True:
            try:
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection("server", 7000)
                    line = f"{ports.random.uuid()}\n".encode() * 3
                    writer.write(line)
                    assert await reader.readexactly(len(line)) == line
                    replies += 1
                    writer.close()
                    await writer.wait_closed()
            except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(ports.random.uniform(0.01, 0.2))

    async def main() -> None:
        host = sim.add_host("server")
        sim.start(host, server)
        for name in ("c1", "c2", "c3"):
            sim.start(sim.add_host(name), client)
        await asyncio.sleep(10)
        sim.net.cut("c1", "server")
        sim.pause(host, 3)
        await asyncio.sleep(10)
        sim.net.heal_all()
        sim.crash(host)
        await asyncio.sleep(2)
        sim.start(host, server)
        await asyncio.sleep(20)

    sim.run(main())
    return sim.trace_crc, replies


def test_ordinary_streams_run_on_it() -> None:
    _, replies = echo_world(1)
    assert replies > 200


def test_a_seed_is_a_run() -> None:
    assert echo_world(2) == echo_world(2)
    assert echo_world(2) != echo_world(3)


def test_a_seed_is_the_same_run_under_another_hash_seed() -> None:
    code = "import test_kit; print(test_kit.echo_world(4))"
    seen = set()
    for hash_seed in ("0", "1", "77"):
        path = os.pathsep.join([str(ROOT / "src"), str(Path(__file__).parent)])
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        seen.add(subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True).stdout)
    assert len(seen) == 1


def test_faults_are_a_swarm() -> None:
    drawn = [Faults.draw(seed) for seed in range(200)]
    assert Faults.draw(7) == Faults.draw(7)
    assert Faults().crash_every_s == 0
    for name in ("crash_every_s", "cut_every_s", "power_cut_every_s", "one_way", "points", "clock_drift"):
        on = sum(bool(getattr(faults, name)) for faults in drawn)
        assert 20 < on < 180, name
    assert "crash_every_s" in Faults(crash_every_s=1).names()


def test_points_strike_only_when_active_and_count() -> None:
    points = Points(1)
    assert all(points.reached("p") is None for _ in range(1000))
    points.strike("p", 1.0)
    delays = [points.reached("p") for _ in range(100)]
    assert None not in delays
    assert 0.0 in delays
    assert any(delays)
    assert points.seen["p"] == 1100
    assert points.struck["p"] == 100
