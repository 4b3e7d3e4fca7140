"""Many partitions, and a follower far behind: what they cost. Writes docs/benchmarks/scale.md and scale.json.

    python tests/perf/bench_scale.py [--quick] [--only idle|failover|catchup] [--out DIR]

Three brokers of their own per part, on this machine, with default settings; the client is an unmodified
confluent-kafka, the probes are single requests of the Kafka protocol. Nothing in the report is typed in by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from millrace.cli.bench_log import machine_facts, quantile
from support_cluster import Cluster, wait_for
from support_load import Load
from support_probe import Prober
from support_raw import Raw

ROOT = Path(__file__).parents[2]
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
IDLE_CPU_GOAL = 0.01
CREATE_GOAL_S = 60.0
REQUEST_GOAL_S = 1.0
PROBE_PARTITIONS = 3
LOAD_RATE = 500
LOAD_BYTES = 1000
RECORD_BYTES = 10_000


@dataclass(frozen=True)
class Sizes:
    idle_partitions: int = 1_000
    idle_s: float = 30.0
    partitions: int = 10_000
    topics: int = 10
    watch_s: float = 15.0
    behind_bytes: int = 2 * 1000**3
    catchup_partitions: int = 6
    before_s: float = 15.0


QUICK = Sizes(idle_partitions=300, idle_s=10.0, partitions=900, topics=3, watch_s=5.0, behind_bytes=100 * 1000**2,
              before_s=5.0)


# -- what a process uses ---------------------------------------------------------------------------------------------
def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def usage(cluster: Cluster) -> dict[str, dict[str, float]]:
    return {str(b): {"rss_mb": round(rss_mb(pid), 1), "descriptors": descriptors(pid)}
            for b, pid in cluster.pids.items()}


def cpu_shares(cluster: Cluster, seconds: float) -> dict[str, float]:
    """Share of a core each broker uses while nothing is asked of it."""
    pids = cluster.pids
    before, began = {b: cpu_s(pid) for b, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    return {str(b): round((cpu_s(pid) - before[b]) / elapsed, 5) for b, pid in pids.items()}


def controller_cpu(cluster: Cluster, shares: dict[str, float]) -> float:
    return shares[str(cluster.controller())]


# -- topics ----------------------------------------------------------------------------------------------------------
def create(cluster: Cluster, topics: dict[str, int]) -> float:
    """Seconds until every broker knows every partition and all replicas are in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    began = time.monotonic()
    wanted = [NewTopic(name, num_partitions=n, replication_factor=3) for name, n in topics.items()]
    for future in admin.create_topics(wanted, operation_timeout=60, request_timeout=90).values():
        future.result()
    total = sum(topics.values())
    cluster.wait_for(lambda: all(settled(cluster, broker, total) for broker in cluster.brokers), "all partitions", 120)
    return time.monotonic() - began


def settled(cluster: Cluster, broker: int, partitions: int) -> bool:
    """As the broker itself sees it: every partition has a leader and all its replicas."""
    topics = cluster.http(broker, "/api/v2/topics", timeout_s=10)["items"]
    known = [t for t in topics if not t["name"].startswith("__")]
    return sum(t["partition_count"] for t in known) == partitions and not any(
        t["under_replicated_partitions"] or t["offline_partitions"] for t in known)


# -- (a) idle --------------------------------------------------------------------------------------------------------
def idle(sizes: Sizes, say: Callable[[str], None]) -> dict[str, Any]:
    with Cluster(3) as cluster:
        none = cpu_shares(cluster, sizes.idle_s / 3)
        create(cluster, {"idle": sizes.idle_partitions})
        time.sleep(12)                  # checkpoints and reports about the new partitions are part of their creation
        shares = cpu_shares(cluster, sizes.idle_s)
        say(f"{sizes.idle_partitions} idle partitions: CPU {shares}, without any {none}, controller "
            f"{cluster.controller()}")
        return {"partitions": sizes.idle_partitions, "seconds": sizes.idle_s, "cpu_share": shares,
                "cpu_share_without_partitions": none, "controller": cluster.controller(),
                "goal": IDLE_CPU_GOAL, "met": max(shares.values()) < IDLE_CPU_GOAL, "usage": usage(cluster)}


# -- (b) many partitions, a broker dies ------------------------------------------------------------------------------
def failover(sizes: Sizes, say: Callable[[str], None]) -> dict[str, Any]:
    per_topic = sizes.partitions // sizes.topics
    topics = {f"many-{n}": per_topic for n in range(sizes.topics)}
    with Cluster(3) as cluster:
        created_s = create(cluster, topics)
        say(f"{sizes.partitions} partitions created in {created_s:.1f} s, {usage(cluster)}")
        create_probe_topic(cluster)
        total = sizes.partitions + PROBE_PARTITIONS
        cluster.wait_for(lambda: all(settled(cluster, b, total) for b in cluster.brokers), "the probe topic")
        time.sleep(12)
        shares = cpu_shares(cluster, sizes.idle_s / 3)
        everything_s = all_metadata_s(cluster)
        say(f"idle CPU {shares}; metadata of everything {everything_s:.3f} s")
        kills = [kill_one(cluster, sizes, kind, list(topics), say) for kind in ("not the controller", "the controller")]
        return {"partitions": sizes.partitions, "topics": sizes.topics, "created_s": round(created_s, 2),
                "create_goal_s": CREATE_GOAL_S, "request_goal_s": REQUEST_GOAL_S, "cpu_share_idle": shares,
                "metadata_of_everything_s": round(everything_s, 3), "usage": usage(cluster), "kills": kills,
                "met": created_s < CREATE_GOAL_S and all(k["longest_s"] < REQUEST_GOAL_S for k in kills)}


def create_probe_topic(cluster: Cluster) -> None:
    cluster.create_topic("probe", partitions=PROBE_PARTITIONS, replication_factor=3)


def all_metadata_s(cluster: Cluster) -> float:
    broker = cluster.brokers[0]
    with Raw(broker.host, broker.kafka_port) as raw:
        began = time.monotonic()
        raw.send("Metadata", {"topics": None})
        raw.receive("Metadata")
        return time.monotonic() - began


def kill_one(
    cluster: Cluster, sizes: Sizes, kind: str, topics: list[str], say: Callable[[str], None]
) -> dict[str, Any]:
    total = sizes.partitions + PROBE_PARTITIONS
    leaders = {p["partition"]: p["leader"] for p in cluster.topic("probe")["partitions"]}
    controller = cluster.controller()
    victim = controller if kind == "the controller" else next(b for b in cluster.brokers if b != controller)
    orphans = [p for p, leader in leaders.items() if leader == victim]
    last = last_topic(cluster)
    survivors = {b.id: (b.host, b.kafka_port) for b in cluster.brokers.values() if b.id != victim}
    with Prober(survivors, "probe", PROBE_PARTITIONS) as prober:
        time.sleep(3)
        assert not prober.failures, prober.failures
        killed = time.monotonic()
        cluster.kill(victim)
        moved_s = wait_moved(survivors, last, victim) - killed
        time.sleep(sizes.watch_s)
        watched = time.monotonic()
        cluster.start_broker(victim)
        cluster.wait_ready([victim], timeout_s=120)
        ready_s = time.monotonic() - watched
        cluster.wait_for(lambda: settled(cluster, victim, total), "the broker to be in sync again", 120)
        back_s = time.monotonic() - watched
        wait_balanced(next(iter(survivors.values())), topics, victim)
        balanced = time.monotonic()
    assert not prober.failures, prober.failures
    longest, rejoin = prober.longest(killed, watched), prober.longest(watched, balanced)
    calm = prober.longest(killed - 2.5, killed)
    result = {
        "victim": kind, "leaders_moved_s": round(moved_s, 3), "longest_s": round(longest.took_s, 3),
        "longest_kind": longest.kind, "longest_before_s": round(calm.took_s, 3),
        "no_ack_s": round(max((prober.without_ack_s(p, killed) for p in orphans), default=0.0), 3),
        "ready_again_s": round(ready_s, 2), "in_sync_again_s": round(back_s, 2),
        "leaders_home_s": round(balanced - watched, 1), "longest_while_it_came_back_s": round(rejoin.took_s, 3),
        "longest_while_it_came_back_kind": rejoin.kind, "probes": len(prober.probes),
        "load_average": round(os.getloadavg()[0], 1),
    }
    say(f"kill -9 of {kind} (broker {victim}): {result}")
    return result


def last_topic(cluster: Cluster) -> str:
    """The topic whose leaders move last: elections go by topic id."""
    topics = [t for t in cluster.ask("/api/v2/topics", timeout_s=10)["items"] if t["name"].startswith("many-")]
    return str(max(topics, key=lambda t: uuid.UUID(t["topic_id"]).int)["name"])


def _leads_nothing(raw: Raw, topic: str, broker: int) -> bool:
    """A leader whose link just broke is not shown to clients: nobody is not somebody else."""
    time.sleep(0.05)
    return not {broker, -1} & set(raw.leaders(topic).values())


def wait_moved(survivors: dict[int, tuple[str, int]], topic: str, victim: int) -> float:
    """When every survivor has replayed that the victim leads nothing."""
    for address in survivors.values():
        with Raw(*address) as raw:
            wait_for(partial(_leads_nothing, raw, topic, victim), "leaders to move", 60)
    return time.monotonic()


def wait_balanced(address: tuple[str, int], topics: list[str], broker: int) -> None:
    """Its leaders are at home again: a third of every topic."""
    def home(raw: Raw) -> bool:
        for topic in topics:
            led = list(raw.leaders(topic).values())
            if led.count(broker) < len(led) // 3:
                return False
            time.sleep(0.05)
        return True
    with Raw(*address) as raw:
        wait_for(lambda: home(raw), "leaders to be spread again", 180)


# -- (c) a follower far behind ---------------------------------------------------------------------------------------
def catchup(sizes: Sizes, say: Callable[[str], None]) -> dict[str, Any]:
    n = sizes.catchup_partitions
    with Cluster(3) as cluster:
        cluster.create_topic("bulk", partitions=n, replication_factor=3)
        cluster.create_topic("steady", partitions=n, replication_factor=3)
        behind = next(b for b in cluster.brokers if b != cluster.controller())
        cluster.kill(behind, 15)
        filled_s = fill(cluster, "bulk", n, sizes.behind_bytes)
        say(f"{sizes.behind_bytes / 1e9:.1f} GB written in {filled_s:.1f} s while broker {behind} was stopped")
        with Load(cluster.bootstrap, "steady", n, rate=LOAD_RATE, padding=LOAD_BYTES, config={"linger.ms": 0}) as load:
            load.wait_acks(LOAD_RATE)
            before = window(load, sizes.before_s)
            began = time.monotonic()
            started_bytes = replica_bytes_in(cluster, behind)
            cluster.start_broker(behind)
            cluster.wait_ready([behind], timeout_s=120)
            ready = time.monotonic()
            cluster.wait_for(lambda: in_sync(cluster, "bulk", behind), "the follower to be in sync", 600)
            ended = time.monotonic()
            carried = replica_bytes_in(cluster, behind) - started_bytes
            during = latencies_ms(load, ready, ended)
            after = window(load, sizes.before_s)
        assert not load.failed, list(load.failed.items())[:3]
        rate = carried / (ended - ready)
        result = {
            "bytes_behind": sizes.behind_bytes, "partitions": n, "ready_s": round(ready - began, 2),
            "in_sync_s": round(ended - ready, 2), "bytes_carried": int(carried), "bytes_per_s": round(rate),
            "fill_s": round(filled_s, 1), "steady_messages_per_s": LOAD_RATE, "steady_message_bytes": LOAD_BYTES,
            "before": summary(before), "during": summary(during), "after": summary(after),
            "load_average": round(os.getloadavg()[0], 1),
        }
        say(f"catch-up {rate / 1e6:.0f} MB/s; before {result['before']}, during {result['during']}, "
            f"after {result['after']}")
        return result


def fill(cluster: Cluster, topic: str, partitions: int, total_bytes: int) -> float:
    """acks=all, as fast as one producer can."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5,
                         "batch.size": 900_000, "queue.buffering.max.kbytes": 256 * 1024})
    values = [os.urandom(RECORD_BYTES) for _ in range(16)]
    failed: list[str] = []
    began = time.monotonic()
    for number in range(total_bytes // RECORD_BYTES):
        while True:
            try:
                producer.produce(topic, values[number % 16], partition=number % partitions,
                                 on_delivery=lambda error, _: failed.append(str(error)) if error else None)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(120) == 0
    assert not failed, failed[:3]
    return time.monotonic() - began


def replica_bytes_in(cluster: Cluster, broker: int) -> float:
    if not cluster.brokers[broker].alive:
        return 0.0
    return cluster.metrics(broker)["millrace_replica_bytes_in_total"]


def in_sync(cluster: Cluster, topic: str, broker: int) -> bool:
    return all(broker in p["isr"] for p in cluster.topic(topic)["partitions"])


def window(load: Load, seconds: float) -> list[float]:
    began = time.monotonic()
    threading.Event().wait(seconds)
    return latencies_ms(load, began, time.monotonic())


def latencies_ms(load: Load, began: float, ended: float) -> list[float]:
    return [(a.acked_at - a.sent_at) * 1000 for a in list(load.acks) if began <= a.sent_at < ended]


def summary(values: list[float]) -> dict[str, float]:
    p50, p99 = quantile(values, 0.5), quantile(values, 0.99)
    return {"messages": len(values), "p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "max_ms": round(max(values), 1)}


# -- report ----------------------------------------------------------------------------------------------------------
PARTS: dict[str, Callable[[Sizes, Callable[[str], None]], dict[str, Any]]] = {
    "idle": idle, "failover": failover, "catchup": catchup,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, measures little")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part; the others keep their figures in the report")
    parser.add_argument("--out", default=str(ROOT / "docs" / "benchmarks"))
    chosen = parser.parse_args()
    sizes = QUICK if chosen.quick else Sizes()
    refuse_full_disk(sizes)
    out = Path(chosen.out)
    out.mkdir(parents=True, exist_ok=True)
    report = earlier(out / "scale.json", quick=chosen.quick)
    for name, part in PARTS.items():
        if chosen.only in (None, name):
            facts = {**machine_facts(), "nice": os.nice(0)}
            report["parts"][name] = {**part(sizes, say), "facts": facts, "sizes": asdict(sizes)}
            (out / "scale.json").write_text(json.dumps(report, indent=2) + "\n")
            (out / "scale.md").write_text(render(report))
    say(f"wrote {out}/scale.md and scale.json")


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def refuse_full_disk(sizes: Sizes) -> None:
    needed = sizes.behind_bytes * 4
    if shutil.disk_usage("/tmp").free < needed:
        raise SystemExit(f"bench_scale: less than {needed / 1e9:.0f} GB free under /tmp; use --quick")


def earlier(path: Path, *, quick: bool) -> dict[str, Any]:
    known = json.loads(path.read_text()) if path.exists() else {}
    if known.get("quick") == quick:
        return dict(known)
    return {"quick": quick, "parts": {}}


def render(report: dict[str, Any]) -> str:
    parts = report["parts"]
    lines = ["# Many partitions, and a follower far behind", "",
             "Made by `tests/perf/bench_scale.py" + (" --quick" if report["quick"] else "")
             + "`; nothing here is typed in by hand. Three brokers and the clients share one machine."]
    for name, title in (("idle", render_idle), ("failover", render_failover), ("catchup", render_catchup)):
        if name in parts:
            lines += ["", *title(parts[name]), "", facts_line(parts[name]["facts"])]
    return "\n".join([*lines, ""])


def facts_line(facts: dict[str, Any]) -> str:
    return "Machine: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items()) + "."


def render_idle(r: dict[str, Any]) -> list[str]:
    rows = [f"| {b} | {share:.2%} | {r['cpu_share_without_partitions'][b]:.2%} | {r['usage'][b]['rss_mb']:.0f} | "
            f"{r['usage'][b]['descriptors']:.0f} |" for b, share in r["cpu_share"].items()]
    return [f"## {r['partitions']:,} idle partitions", "",
            (f"CPU of each broker over {r['seconds']:.0f} s in which nobody asks for anything; "
            f"goal: below {r['goal']:.0%} of a core ({'met' if r['met'] else 'missed'}). "
            f"Controller: broker {r['controller']}."), "",
            "| broker | CPU of a core | without partitions | RSS MB | descriptors |", "|---|---:|---:|---:|---:|",
            *rows]


def render_failover(r: dict[str, Any]) -> list[str]:
    use = "; ".join(f"broker {b}: {u['rss_mb']:.0f} MB, {u['descriptors']:.0f} descriptors"
                    for b, u in r["usage"].items())
    rows = [
        f"| {k['victim']} | {k['longest_s']:.3f} ({k['longest_kind']}) | {k['longest_before_s']:.3f} | "
        f"{k['leaders_moved_s']:.2f} | {k['no_ack_s']:.2f} | {k['in_sync_again_s']:.1f} | {k['leaders_home_s']:.0f} | "
        f"{k['longest_while_it_came_back_s']:.3f} ({k['longest_while_it_came_back_kind']}) |" for k in r["kills"]]
    idle_cpu = ", ".join(f"{share:.2%}" for share in r["cpu_share_idle"].values())
    return [f"## {r['partitions']:,} partitions, a broker is killed", "",
            (f"{r['topics']} topics, replication factor 3, created by one AdminClient and in sync on all brokers "
            f"within {r['created_s']:.1f} s (goal {r['create_goal_s']:.0f} s). Idle CPU {idle_cpu} of a core; metadata "
            f"of everything in one request {r['metadata_of_everything_s']:.2f} s. In use afterwards: {use}."), "",
            ("Probes (Produce acks=all, Metadata, Fetch) ask the surviving brokers all the time; goal: none takes "
            f"{r['request_goal_s']:.0f} s ({'met' if r['met'] else 'missed'}). Seconds:"), "",
            ("| killed | longest request | before the kill | all leaders moved | its partitions took no write | "
            "in sync after restart | leaders home | longest request meanwhile |"),
            "|---|---:|---:|---:|---:|---:|---:|---:|", *rows]


def render_catchup(r: dict[str, Any]) -> list[str]:
    rows = [f"| {when} | {r[when]['messages']} | {r[when]['p50_ms']} | {r[when]['p99_ms']} | {r[when]['max_ms']} |"
            for when in ("before", "during", "after")]
    return [f"## A follower {r['bytes_behind'] / 1e9:.1f} GB behind", "",
            (f"Stopped, {r['bytes_behind'] / 1e9:.1f} GB written with acks=all to the other two "
            f"({r['bytes_behind'] / 1e6 / r['fill_s']:.0f} MB/s), started again under {r['steady_messages_per_s']} "
            f"messages/s of {r['steady_message_bytes']} B (acks=all, linger.ms 0). It was in sync "
            f"{r['in_sync_s']:.1f} s after it was ready: {r['bytes_per_s'] / 1e6:.0f} MB/s."), "",
            "| producers | messages | p50 ms | p99 ms | max ms |", "|---|---:|---:|---:|---:|", *rows]


if __name__ == "__main__":
    main()
