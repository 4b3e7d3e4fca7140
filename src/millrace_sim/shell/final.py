"""The end of a run: the world is healed and must converge; then everything is read again and judged.

In: a healed world. Out: nothing, or a `Violation` that names what did not come back, or what was lost.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.model.records import PartitionChanged
from millrace.ops.ports import Ports
from millrace_sim.checkers import Violation, Where
from millrace_sim.shell.holders import Holder
from millrace_sim.shell.workload import Consumer, Producer, Progress, refresh

if TYPE_CHECKING:
    from millrace_sim.shell.world import World

CONVERGE_S = 60.0
ANSWER_S = 20.0


async def converge(world: World) -> None:
    """All brokers serve, every ISR is full, every write that was begun has its answer, all replicas agree."""
    deadline = world.sim.loop.now + CONVERGE_S
    for progress in world.progress:
        if "-read-" not in progress.name:
            progress.stopping = True
    while True:
        restart_failed(world)
        why = _why_not(world)
        if not why:
            break
        if world.sim.loop.now > deadline:
            raise Violation(f"liveness: {CONVERGE_S:g} s after healing: {why}")
        await asyncio.sleep(0.1)
    for progress in world.progress:
        progress.stopping = True


def restart_failed(world: World) -> None:
    """A replica whose disk failed stays out until its broker is restarted: the operator does what the log line says."""
    for host, broker in world.running():
        if any(partition.log.failed is not None for partition in broker.partitions.values()):
            world.stop_broker(host)


def _why_not(world: World) -> str:
    waiting = [p for p in world.progress if p.stopping and not p.done]
    if waiting:
        return f"{waiting[0].name} still waits: {waiting[0].last_error}"
    running = world.running()
    if len(running) < len(world.broker_hosts):
        return f"only {[h.name for h, _ in running]} serve; ends: {world.ends}"
    for where in world.wheres:
        why = _why_not_one(world, where)
        if why:
            return why
    return ""


def _why_not_one(world: World, where: Where) -> str:
    found = []
    for host, broker in world.running():
        partition = broker.partition(where[0].encode(), where[1])
        if partition is None:
            return f"{host.name} has no {where}"
        if partition.failed:
            return f"{where} on {host.name} failed: {partition.failed}"
        found.append((host, partition))
    leaders = [host.name for host, partition in found if partition.replica.is_leader]
    if len(leaders) != 1:
        return f"{where} is led by {leaders}"
    for host, partition in found:
        replica = partition.replica
        if len(replica.isr) != len(found):
            return f"{where}: ISR {sorted(replica.isr)} on {host.name}"
        if replica.hw != replica.leo or replica.leo != partition.log.log_end:
            return f"{where} on {host.name}: HW {replica.hw}, LEO {replica.leo}, end {partition.log.log_end}"
    if len({partition.log.log_end for _, partition in found}) > 1:
        return f"{where}: ends {[(h.name, p.log.log_end) for h, p in found]}"
    return ""


async def judge(world: World, ports: Ports) -> None:
    """New writes are accepted; all logs are equal, and say what clients were told."""
    client = world.client(world.seed + 1, timeout_s=10.0)
    await refresh(client)
    producers = [
        Producer(
            client=client, history=world.history, random=ports.random, where=where, idempotent=False,
            progress=Progress(f"last-{where}"),
        )
        for where in world.wheres
    ]
    async with asyncio.timeout(ANSWER_S):
        await asyncio.gather(*(_write_once(producer) for producer in producers))
    ends: dict[Where, int] = {}
    for where in world.wheres:
        reader = Consumer(
            client=client, history=world.history, random=ports.random, where=where, progress=Progress("final reader")
        )
        ends[where] = await _read_all(reader)
    starts = {where: await client.offset_of(where, -2) for where in world.wheres}
    for holder in world.holders:
        await Holder.check(replace(holder, client=client))
    world.history.finish(ends, starts)
    compare_replicas(world)
    compare_writers(world)
    check_controller_log(world)


async def _write_once(producer: Producer) -> None:
    producer.fill()
    producer.progress.stopping = True
    await producer.run()


async def _read_all(reader: Consumer) -> int:
    deadline = asyncio.get_running_loop().time() + 10 * ANSWER_S
    while reader.end < 0 or reader.position < reader.end:
        if asyncio.get_running_loop().time() > deadline:
            raise Violation(f"liveness: {reader.where} cannot be read: {reader.progress.last_error}")
        if not await reader.step(max_wait_ms=10):
            await asyncio.sleep(0.1)
            await refresh(reader.client)
    return reader.end


def compare_replicas(world: World) -> None:
    """Byte for byte: the copies of one partition are one log."""
    for where in world.wheres:
        copies = {}
        for host, broker in world.running():
            partition = broker.partition(where[0].encode(), where[1])
            assert partition is not None
            content, position = b"", max(starts_of(world, where))
            while position < partition.replica.hw:
                chunk = partition.log.read(position, 1 << 20, upto=partition.replica.hw)
                assert chunk is not None, f"{where} on {host.name}: nothing at {position}"
                content += chunk.bytes()
                position = chunk.end
            copies[host.name] = (position, content)
        shortest = min(len(content) for _, content in copies.values())
        if len({content[:shortest] for _, content in copies.values()}) > 1:
            raise Violation(f"{where}: replicas differ: {[(n, p, len(c)) for n, (p, c) in copies.items()]}")


def compare_writers(world: World) -> None:
    """[L28] Whoever may lead next knows the same of every writer, also of those whose batches are gone."""
    for where in world.wheres:
        found = [(host.name, broker.partition(where[0].encode(), where[1])) for host, broker in world.running()]
        logs = {name: partition.log for name, partition in found if partition is not None}
        if len({log.log_end for log in logs.values()}) > 1:
            continue                # the last writes are still on their way
        first, *others = logs
        for other in others:
            if logs[first].producers.by_id != logs[other].producers.by_id:
                raise Violation(f"{where}: {first} and {other} know different things of writers")


def starts_of(world: World, where: Where) -> list[int]:
    """Replicas are cut one by one: what they all have begins where the last of them begins."""
    found = [broker.partition(where[0].encode(), where[1]) for _, broker in world.running()]
    return [partition.log.log_start for partition in found if partition is not None]


def controller_view(world: World) -> dict[tuple[object, int], PartitionChanged]:
    """The last word of the controller about each partition."""
    records = [record for record in world.controller_records() if isinstance(record, PartitionChanged)]
    return {(record.topic_id, record.partition): record for record in records}


def check_controller_log(world: World) -> None:
    """What the controller wrote down: epochs only grow, and one epoch has one leader."""
    leaders: dict[tuple[object, int, int], int] = {}
    epochs: dict[tuple[object, int], tuple[int, int]] = {}
    for record in world.controller_records():
        if not isinstance(record, PartitionChanged):
            continue
        key = (record.topic_id, record.partition)
        now = (record.leader_epoch, record.partition_epoch)
        before = epochs.get(key, (-1, -1))
        if now[0] < before[0] or now[1] <= before[1]:
            raise Violation(f"{key}: the controller went from epochs {before} to {now}")
        epochs[key] = now
        if record.leader >= 0 and leaders.setdefault((*key, record.leader_epoch), record.leader) != record.leader:
            raise Violation(f"{key}: epoch {record.leader_epoch} has two leaders in the controller's log")
