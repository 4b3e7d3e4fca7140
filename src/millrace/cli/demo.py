"""`millrace demo`: a live shop database in the log, processes killed by kill -9, and proof that nothing is lost [A5].

    shop (PostgreSQL, writers) ─▶ capture ─▶ three brokers ◀─ a Kafka producer and a reader
                                                 │  ▲
                                                 ▼  │ topics as debezium-json
                                              a changefeed on Spark
"""

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
from millrace.cli.up_spark import what_is_missing

TOPIC = "demo"
PARTITIONS = 3
RATE = 1000.0
STEADY_S = 2.0
FAILOVER_S_MAX = 3.0


def demo(*, check: bool = False, json: bool = False) -> None:
    """Bring a live shop database into the log and from there into topics, and write to it with a Kafka client; kill
    what does the work, and show that nothing was lost or doubled and how long it took.

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
    from millrace.cli.demo_feed import FeedTour  # Arrow and a driver: other commands start faster
    from millrace.cli.demo_shop import follow_the_shop, shop_starting

    say("[bold]millrace demo[/]: three brokers, two captures, Spark, a shop in PostgreSQL, a Kafka producer")
    began, missing = time.monotonic(), what_is_missing()
    with shop_starting() as starting, LocalCluster(3, captures=2, spark=not missing) as cluster:
        say(f"  brokers {_pids(cluster)} ready after {time.monotonic() - began:.1f} s at {cluster.bootstrap}")
        feed = FeedTour(cluster, say, missing)
        with follow_the_shop(cluster, starting, say, then=feed.begin) as shop:
            facts = _log(cluster, say)
            facts["source"] = shop.close()
        facts["changefeed"] = feed.close(shop.last, facts["source"]["tables"])
        facts["ok"] = facts["ok"] and facts["source"]["ok"] and facts["changefeed"]["ok"]
        facts["took_s"] = round(time.monotonic() - began, 1)
    return facts


def _log(cluster: LocalCluster, say: Callable[..., None]) -> dict[str, Any]:
    """The brokers under a Kafka client's load; the leader is killed."""
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
    say(f"  read back: {facts['acked']:,} acknowledged, [bold green]{facts['lost']} lost[/], "
        f"{facts['moved']} at another offset, {facts['out_of_order']} out of order, {facts['doubled']} doubled")
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
    say("[bold green]nothing was lost, nothing doubled[/]" if result["ok"] else
        "[bold red]this should not have happened: see above[/]")


def _pids(cluster: LocalCluster) -> str:
    return ", ".join(f"{broker} (pid {pid})" for broker, pid in cluster.pids().items())


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _say_nothing(*_: Any, **__: Any) -> None:
    """Headless."""
