"""Processes on hosts: a dead one never acts again, a stopped one waits while its clocks go on."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from millrace.ops.ports import Ports
from millrace_sim.kit import Sim
from millrace_sim.processes import PROCESS, Crashed, State


def test_everything_a_process_starts_belongs_to_it() -> None:
    sim = Sim(1)
    host = sim.add_host("a")
    seen: list[object] = []

    async def child() -> None:
        seen.append(PROCESS.get())

    async def program(ports: Ports) -> None:
        asyncio.get_running_loop().call_soon(lambda: seen.append(PROCESS.get()))
        asyncio.get_running_loop().call_later(1, lambda: seen.append(PROCESS.get()))
        await asyncio.get_running_loop().create_task(child())
        await asyncio.sleep(2)

    async def main() -> None:
        sim.start(host, program)
        await asyncio.sleep(3)
        assert PROCESS.get() is None

    sim.run(main())
    assert seen == [host.process] * 3


def test_a_killed_process_never_acts_again_not_even_in_finally() -> None:
    sim = Sim(1)
    host = sim.add_host("a")
    acts: list[str] = []

    async def program(ports: Ports) -> None:
        try:
            fd = ports.fs.open("/f", create=True)
            asyncio.get_running_loop().call_later(5, acts.append, "timer")
            while True:
                ports.fs.pwrite(fd, b"x", ports.fs.size(fd))
                await asyncio.sleep(1)
        finally:
            ports.fs.pwrite(fd, b"finally", 0)
            acts.append("finally")

    async def main() -> None:
        sim.start(host, program)
        await asyncio.sleep(2.5)
        sim.crash(host)
        await asyncio.sleep(10)

    sim.run(main())
    assert acts == []
    assert host.disk.used_bytes() == 3


def test_a_restart_is_another_process_on_the_same_disk() -> None:
    sim = Sim(1)
    host = sim.add_host("a")
    identities = []

    async def program(ports: Ports) -> None:
        identities.append(ports.processes.me())
        ports.fs.close(ports.fs.open(f"/{len(identities)}", create=True))

    async def main() -> None:
        sim.start(host, program)
        await asyncio.sleep(1)
        sim.start(host, program)
        await asyncio.sleep(1)

    sim.run(main())
    assert len(set(identities)) == 2
    assert host.disk.paths() == ["/1", "/2"]


def test_a_stopped_process_waits_and_its_clock_goes_on() -> None:
    sim = Sim(1)
    host = sim.add_host("a")
    ticks: list[float] = []

    async def program(ports: Ports) -> None:
        start = ports.clock.now()
        while True:
            await asyncio.sleep(1)
            ticks.append(round(ports.clock.now() - start, 3))

    async def main() -> None:
        sim.start(host, program)
        await asyncio.sleep(2.5)
        sim.pause(host, 10)
        await asyncio.sleep(10.8)

    sim.run(main())
    assert ticks == [1.0, 2.0, 12.5]


def test_work_of_an_executor_is_dropped_with_its_process_and_waits_with_it() -> None:
    sim = Sim(1)
    host = sim.add_host("a")
    done: list[float] = []

    async def program(ports: Ports) -> None:
        await asyncio.to_thread(lambda: done.append(round(sim.loop.now, 3)))
        await asyncio.sleep(100)

    async def main() -> None:
        sim.start(host, program)
        await asyncio.sleep(0)
        sim.pause(host, 5)
        await asyncio.sleep(6)
        assert done == [5.0]
        sim.crash(host)
        sim.start(host, program)
        await asyncio.sleep(0)
        sim.crash(host)
        await asyncio.sleep(6)

    sim.run(main())
    assert done == [5.0]


def test_one_thread_does_its_work_in_order() -> None:
    sim = Sim(1)
    host = sim.add_host("a")
    host.work_mean_s = 1.0
    done: list[int] = []

    async def program(ports: Ports) -> None:
        one = ThreadPoolExecutor(1)
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(one, done.append, number) for number in range(20)))

    async def main() -> None:
        sim.start(host, program)
        await asyncio.sleep(1000)

    sim.run(main())
    assert done == list(range(20))


def test_L17_proof_of_death_exists_only_on_the_same_machine_and_boot() -> None:
    sim = Sim(1)
    a, b, far = sim.add_host("a", machine="m"), sim.add_host("b", machine="m"), sim.add_host("far")

    async def program(ports: Ports) -> None:
        await asyncio.sleep(1000)

    async def main() -> None:
        for host in (a, b, far):
            sim.start(host, program)
        assert a.process is not None
        assert b.process is not None
        assert far.process is not None
        near, away = sim.ports(b.process).processes, sim.ports(far.process).processes
        target = a.process.identity
        assert not near.is_gone(target)
        sim.pause(a, 5)
        assert not near.is_gone(target)
        sim.crash(a)
        assert near.is_gone(target)
        assert not away.is_gone(target)
        sim.power_cut(sim.machines["m"])
        sim.power_on(sim.machines["m"])
        again = sim.start(b, program)
        assert not sim.ports(again).processes.is_gone(target)

    sim.run(main())


def test_a_point_kills_its_process_inside_the_callback() -> None:
    sim = Sim(1)
    host = sim.add_host("a")
    sim.points.strike("after_ack", 1.0)
    sim.points._rng.seed(3)
    acts: list[str] = []
    exits: list[object] = []
    sim.on_exit = exits.append

    async def program(ports: Ports) -> None:
        try:
            acts.append("ack")
            ports.buggify("after_ack")
            acts.append("after")
        except Exception:
            acts.append("handled")
        await asyncio.sleep(1)
        acts.append("later")

    async def main() -> None:
        sim.start(host, program)
        await asyncio.sleep(10)

    sim.run(main())
    assert "later" not in acts
    assert "handled" not in acts
    assert exits == [host.process]


def test_a_failing_program_fails_the_world_and_an_ending_one_ends_its_process() -> None:
    async def fails(ports: Ports) -> None:
        raise ValueError("planted")

    async def ends(ports: Ports) -> None:
        asyncio.get_running_loop().call_later(1, ports.fs.makedirs, "/never")

    async def main(program: object) -> None:
        sim.start(host, program)  # type: ignore[arg-type]
        await asyncio.sleep(5)

    sim = Sim(1)
    host = sim.add_host("a")
    with pytest.raises(ValueError, match="planted"):
        sim.run(main(fails))
    sim = Sim(1)
    host = sim.add_host("a")
    sim.run(main(ends))
    assert host.process is not None
    assert host.process.state is State.DEAD
    assert host.disk.paths() == []


def test_ports_of_a_dead_process_raise_crashed() -> None:
    sim = Sim(1)
    host = sim.add_host("a")

    async def program(ports: Ports) -> None:
        await asyncio.sleep(100)

    async def main() -> None:
        process = sim.start(host, program)
        sim.crash(host)
        with pytest.raises(Crashed):
            process.context.run(host.disk.makedirs, "/d")

    sim.run(main())
