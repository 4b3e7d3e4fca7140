"""`millrace demo`: three brokers under load, the leader killed with kill -9, and proof that nothing was lost [A5]."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from millrace.cli.exits import FAILED
from millrace.cli.load import Reader, SteadyProducer, Verdict, judge
from millrace.cli.local import LocalCluster
from millrace.cli.output import console

TOPIC = "demo"
PARTITIONS = 3
RATE = 1000.0
STEADY_S = 3.0
FAILOVER_S_MAX = 3.0


def demo(*, check: bool = False, json: bool = False) -> None:
    """Start three brokers, write and read, kill the leader, and show that nothing was lost and how long it took.

    Parameters
    ----------
    check
        Exit 1 unless nothing was lost or doubled and writes went on within 3 s.
    json
        Print the result as JSON, and nothing else.
    """
    say = _say_nothing if json else console().print
    result = run(say)
    _show(result, as_json=json, say=say)
    if check and not result["ok"]:
        raise SystemExit(FAILED)


def run(say: Callable[..., None]) -> dict[str, Any]:
    say("[bold]millrace demo[/]: three brokers, a topic with three copies of everything, an idempotent producer")
    began = time.monotonic()
    with LocalCluster(3) as cluster:
        say(f"  brokers {_pids(cluster)} ready after {time.monotonic() - began:.1f} s at {cluster.bootstrap}")
        cluster.create_topic(TOPIC, partitions=PARTITIONS)
        producer = SteadyProducer(cluster.bootstrap, TOPIC, PARTITIONS, RATE, settings={"enable.idempotence": True})
        live = Reader(cluster.bootstrap, TOPIC, PARTITIONS)
        producer.start()
        live.start()
        try:
            facts = _tour(cluster, producer, say)
        finally:
            sent = producer.stop()
            live.close()
        verdict = _read_back(cluster, producer)
        facts |= {"sent": sent, "failed": producer.failed, **asdict(verdict),
                  "read_live": sum(map(len, live.seen)),
                  "ok": verdict.ok and not (verdict.doubled or producer.failed)
                  and facts["failover_s"] <= FAILOVER_S_MAX}
    return facts


def _tour(cluster: LocalCluster, producer: SteadyProducer, say: Callable[..., None]) -> dict[str, Any]:
    cluster.wait_for(lambda: len(producer.acked) > 0, "the first acknowledgement")
    time.sleep(STEADY_S)
    latency_ms = _median([a.latency_s for a in producer.acked[-1000:]]) * 1000
    say(f"  {len(producer.acked):,} messages written and acknowledged by all three, {latency_ms:.1f} ms each (median)")

    leader = cluster.topic(TOPIC)["partitions"][0]["leader"]
    controller = cluster.status()["controller"]
    pid = cluster.kill(leader)
    killed_at = time.monotonic()
    what = "leader and controller" if leader == controller else "leader"
    say(f"  [red]kill -9 {pid}[/]: broker {leader}, {what} of partition 0")
    cluster.wait_for(lambda: _next_ack_s(producer, killed_at) is not None, "a write to partition 0 after the kill")
    failover_s = _next_ack_s(producer, killed_at)
    assert failover_s is not None
    say(f"  writes to partition 0 go on after [bold green]{failover_s:.2f} s[/]")

    cluster.wait_for(lambda: _is_whole(cluster), "all replicas in sync again")
    healed_s = time.monotonic() - killed_at
    say(f"  broker {leader} was restarted, caught up and is in sync again after {healed_s:.1f} s")
    return {"leader_killed": leader, "was_controller": leader == controller, "failover_s": round(failover_s, 3),
            "healed_s": round(healed_s, 3), "latency_ms": round(latency_ms, 3)}


def _next_ack_s(producer: SteadyProducer, killed_at: float) -> float | None:
    """Time from the kill to the first acknowledgement of a message to partition 0 that was sent after it."""
    for acked in reversed(producer.acked):
        if acked.at < killed_at:
            return None
        if acked.partition == 0:
            after = [a.at for a in producer.acked[-20_000:] if a.partition == 0 and a.at - a.latency_s > killed_at]
            return min(after) - killed_at if after else None
    return None


def _is_whole(cluster: LocalCluster) -> bool:
    return all(len(p["isr"]) == 3 for p in cluster.topic(TOPIC)["partitions"])


def _read_back(cluster: LocalCluster, producer: SteadyProducer) -> Verdict:
    """A second reader, after the fact: what the live one saw could have been luck."""
    ends: dict[int, int] = {}
    for acked in producer.acked:
        ends[acked.partition] = max(ends.get(acked.partition, 0), acked.offset + 1)
    reader = Reader(cluster.bootstrap, TOPIC, PARTITIONS)
    try:
        reader.read_up_to(ends)
    finally:
        reader.close()
    return judge(producer.acked, reader.seen)


def _show(result: dict[str, Any], *, as_json: bool, say: Callable[..., None]) -> None:
    if as_json:
        print(json.dumps(result, indent=2))
        return
    say(f"  read back: {result['acked']:,} acknowledged, [bold green]{result['lost']} lost[/], "
        f"{result['moved']} at another offset, {result['out_of_order']} out of order, {result['doubled']} doubled")
    say("[bold green]nothing was lost[/]" if result["ok"] else "[bold red]this should not have happened: see above[/]")


def _pids(cluster: LocalCluster) -> str:
    return ", ".join(f"{broker} (pid {pid})" for broker, pid in cluster.pids().items())


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _say_nothing(*_: Any) -> None:
    """Headless."""
