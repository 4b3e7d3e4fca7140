"""Processes that use a store and are killed or stopped inside its calls. Run as `python -m support_store_child …`.

    sweep URL SEED ROUNDS FLAW  forks one worker after another; each checks the history it finds, goes on writing and is
                                killed, at a named point inside a call or at a random time. One JSON line at the end.
                                FLAW "early-ack" acknowledges before the append: the check must find it.
    stop URL CALL POINT TTL_S   acquires the office "controller", then stops itself (SIGSTOP) at POINT of CALL.
    busy URL                    a healthy holder that appends without a pause.
    hold PATH                   a stranger that locks the database at PATH and sleeps.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable

from millrace.errors import StoreUnreachable
from millrace.ops.ports import Ports
from millrace.ops.real import real_ports
from millrace.store import open_store
from millrace.store.contract import Candidate, Store

OFFICE = "controller"
CALLS = ("acquire", "renew", "append", "save_snapshot", "release", "grant")
AT_RANDOM = "at a random time"
POINTS = {"sqlite": ("begun", "before_commit", "after_commit"), "etcd": ("begun", "after_commit")}


def say(**what: object) -> None:
    """One write, so that a kill cannot cut it."""
    os.write(1, json.dumps(what).encode() + b"\n")


def ports_with(buggify: Callable[[str], None]) -> Ports:
    return dataclasses.replace(real_ports(), buggify=buggify)


def me(ports: Ports) -> Candidate:
    process = ports.processes.me()
    return Candidate(member=process.pid, address="127.0.0.1:1", process=process)


# -- sweep: kill -9 in every call ----------------------------------------------------------------------------------
@dataclasses.dataclass
class Known:
    """What workers reported before they died."""

    acked: int = 0
    token: int = 0
    snapshot: int = 0
    epoch: int = 0


async def find_history(store: Store, known: Known) -> int:
    """The last index, after checking that nothing acknowledged is missing and nothing is doubled or skipped."""
    loaded = await store.load_snapshot(OFFICE)
    floor = 0 if loaded is None else loaded[0]
    assert floor >= known.snapshot, f"snapshot went back to {floor} from {known.snapshot}"
    assert loaded is None or loaded[1] == b"snapshot %d" % floor
    last = floor
    while records := await store.read(OFFICE, last, 500):
        for index, record in records:
            assert index == last + 1, f"record {index} after {last}"
            assert record == b"%d" % index, f"record {index} is {record!r}"
            last = index
    assert last >= known.acked, f"the last record is {last}, acknowledged was {known.acked}"
    return last


async def next_token(store: Store, candidate: Candidate, before: int) -> int:
    token = await store.acquire(OFFICE, candidate, 30.0)
    assert token > before, f"token {token} after {before}"
    say(token=token)
    return token


async def next_epoch(store: Store, known: int) -> int:
    """Far above what the dead one may still have under way."""
    granted = await store.holder("source/x")
    epoch = 0 if granted is None else granted.token
    assert epoch >= known, f"epoch went back to {epoch} from {known}"
    return (epoch // 1000 + 1) * 1000


async def work(url: str, known: Known, rng: random.Random, buggify: Callable[[str], None], flaw: str) -> None:
    ports = ports_with(buggify)
    store = open_store(url, ports)
    token = await next_token(store, me(ports), known.token)
    # Only now: what the dead one had under way may arrive until its token is no longer the present one.
    last = await find_history(store, known)
    epoch = await next_epoch(store, known.epoch)
    for number in range(500):
        if number % 12 == 11:
            token = await next_token(store, me(ports), token)
        records = [b"%d" % (last + n) for n in range(1, rng.randint(2, 20))]
        if flaw == "early-ack":
            say(acked=last + len(records))
        last = await store.append(OFFICE, token, last, records)
        say(acked=last)
        await store.renew(OFFICE, token, 30.0)
        if number % 3 == 0:
            await store.save_snapshot(OFFICE, token, last - 1, b"snapshot %d" % (last - 1))
            say(snapshot=last - 1)
        epoch += 1
        await store.grant("source/x", me(ports), epoch)
        say(epoch=epoch)
        if number % 12 == 10:
            await store.release(OFFICE, token)


def deadly(target: str, occurrence: int) -> Callable[[str], None]:
    left = [occurrence]

    def buggify(point: str) -> None:
        if point == target:
            left[0] -= 1
            if left[0] == 0:
                say(killed_at=point)
                os.kill(os.getpid(), signal.SIGKILL)

    return buggify


def one_round(
    url: str, known: Known, rng: random.Random, target: str | None, flaw: str
) -> list[dict[str, object]]:
    reading, writing = os.pipe()
    seed, occurrence, delay_s = rng.random(), rng.randint(1, 3), rng.uniform(0.005, 0.08)
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        os.close(reading)
        os.close(writing)
        buggify = deadly(target, occurrence) if target else lambda point: None
        try:
            asyncio.run(work(url, known, random.Random(seed), buggify, flaw))
        except (Exception, KeyboardInterrupt) as error:
            say(failed=f"{type(error).__name__}: {error}")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        first = pipe.readline()  # the worker is at work: before that a kill would meet nothing
        if target is None:
            time.sleep(delay_s)
            os.kill(child, signal.SIGKILL)
        said = [json.loads(line) for line in [first, *pipe.read().splitlines()] if line]
    _, status = os.waitpid(child, 0)
    if target is None and os.WIFSIGNALED(status):
        said.append({"killed_at": AT_RANDOM})
    return said


def sweep(url: str, seed: int, rounds: int, flaw: str) -> None:
    rng = random.Random(seed)
    known = Known()
    names = [f"store.{call}.{point}" for call in CALLS for point in POINTS[url.partition(":")[0]]]
    killed: dict[str, int] = {}
    for number in range(rounds):
        target = None if number % 3 == 2 else names[(number - number // 3) % len(names)]
        for line in one_round(url, known, rng, target, flaw):
            if "failed" in line:
                say(failed=line["failed"], round=number, target=target)
                sys.exit(1)
            if "killed_at" in line:
                killed[line["killed_at"]] = killed.get(line["killed_at"], 0) + 1
            for name in ("acked", "token", "snapshot", "epoch"):
                setattr(known, name, line.get(name, getattr(known, name)))
    say(killed=killed, missed=sorted({*names, AT_RANDOM} - set(killed)), **dataclasses.asdict(known))


# -- stop: SIGSTOP inside a call -----------------------------------------------------------------------------------
async def stop(url: str, call: str, point: str, ttl_s: float) -> None:
    armed = [False]

    def buggify(reached: str) -> None:
        if armed[0] and reached == f"store.{call}.{point}":
            say(stopping=reached)
            # To this thread: sent to the process, another thread may take it while this one runs on through COMMIT.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    ports = ports_with(buggify)
    store = open_store(url, ports)
    armed[0] = call == "acquire"
    token = await store.acquire(OFFICE, me(ports), ttl_s)
    armed[0] = True
    if call == "idle":
        say(stopping="idle", token=token)
        os.kill(os.getpid(), signal.SIGSTOP)
    if call == "renew":
        await store.renew(OFFICE, token, ttl_s)
    if call == "grant":
        await store.release(OFFICE, token)
        await store.grant(OFFICE, me(ports), token + 1)
    if call == "save_snapshot":
        await store.save_snapshot(OFFICE, token, 0, b"")
    try:
        await store.append(OFFICE, token, 0, [b"late"])
        say(appended=True)
    except Exception as error:
        say(refused=type(error).__name__)
    await store.close()


async def append_for_ever(url: str) -> None:
    """As slow or fast as the machine allows."""
    ports = real_ports()
    store = open_store(url, ports)
    token = await store.acquire(OFFICE, me(ports), 30.0)
    index = await store.watch(OFFICE, -1, 0.0)
    say(token=token)
    while True:
        try:
            index = await store.append(OFFICE, token, index, [b"x"] * 50)
        except StoreUnreachable:
            say(unreachable=True)


def hold(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say(holding=True)
    time.sleep(60)


def main(command: str, *arguments: str) -> None:
    if command == "sweep":
        sweep(arguments[0], int(arguments[1]), int(arguments[2]), arguments[3])
    elif command == "stop":
        asyncio.run(stop(arguments[0], arguments[1], arguments[2], float(arguments[3])))
    elif command == "busy":
        asyncio.run(append_for_ever(arguments[0]))
    elif command == "hold":
        hold(arguments[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
