"""Changefeeds of many tables. Writes docs/benchmarks/changefeeds.md and changefeeds.json.

    python tests/perf/bench_changefeeds.py [--only idle|schedule] [--tables 1000] [--seconds 150] [--out DIR]

idle      a changefeed of a thousand tables: how soon it works, and what it costs while nothing happens. Three brokers,
          two captures, a Spark Connect server and PostgreSQL of their own, on this machine, with default settings,
          started by `millrace up`
schedule  a hundred thousand dispatchers on a hundred captures, simulated: what a pass of their maintainer costs

A part that is not run keeps the figures it had. Nothing in the report is typed in by hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psycopg

from millrace import limits
from millrace.cli.bench_log import machine_facts
from millrace.cli.layout import Layout
from millrace.cli.local import LocalCluster
from millrace.model.tables import parse_lsn
from support_postgres import database, server_of
from support_spark import children_of, cpu_s

ROOT = Path(__file__).parents[2]
CREATE_GOAL_S = 30.0
IDLE_GOAL = 0.05               # of a core: captures, Spark and its workers together
SETTLE_S = 15.0                # what follows from the last rows is theirs
IDLE_S = 2 * limits.ENDS_REFRESH_S + 30       # every dispatcher looks at the ends of its targets twice, or more often
PASS_GOAL_S, MEMORY_GOAL_MIB = 1.0, 2048
FEED, SOURCE = "bench", "bench"
SINK = "kafka:?format=debezium-json&partitions=1"


class Site:
    def __init__(self, cluster: LocalCluster, url: str) -> None:
        self.cluster, self.url = cluster, url

    def get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.ask("GET", f"/api/v2/{path}", kind="capture")
        return found

    def source_settled(self) -> bool:
        found = self.get(f"sources/{SOURCE}")
        return found["state"] == "streaming" and not [one for one in found["copies"] if one["state"] != "done"]

    def working(self) -> int:
        return int(self.get(f"changefeeds/{FEED}")["working_count"] or 0)

    def checkpoint(self) -> int:
        return parse_lsn(self.get(f"changefeeds/{FEED}")["checkpoint"] or "0/0")

    def pids(self, kind: str) -> list[int]:
        own = [one["pid"] for one in Layout(self.cluster.dir).read_state()["children"] if one["kind"] == kind]
        return [pid for one in own for pid in (one, *children_of(one))]

    def shares(self, seconds: float) -> dict[str, float]:
        """Of a core."""
        kinds = ("capture", "spark", "broker")
        before, began = {kind: self.used_s(kind) for kind in kinds}, time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        return {kind: round(_more_s(before[kind], self.used_s(kind)) / elapsed, 4) for kind in kinds}

    def used_s(self, kind: str) -> dict[int, float]:
        return {pid: cpu_s([pid]) for pid in self.pids(kind)}


def _more_s(before: dict[int, float], after: dict[int, float]) -> float:
    """Of those that are there, also new ones: a worker that ends while nothing happens takes its past with it."""
    return sum(used - before.get(pid, 0.0) for pid, used in after.items())


def took_s(condition: Callable[[], bool], cluster: LocalCluster, what: str, timeout_s: float = 600.0) -> float:
    began = time.monotonic()
    cluster.wait_for(condition, what, timeout_s)
    return round(time.monotonic() - began, 1)


def measure(tables: int, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    with (
        server_of(15) as server, database(server) as name,
        psycopg.connect(server.url(name), autocommit=True) as db,
        LocalCluster(3, captures=2, spark=True) as cluster,
    ):
        for n in range(tables):
            db.execute(f"CREATE TABLE t{n} (id bigint PRIMARY KEY, note text)")
        site = Site(cluster, server.url(name))
        cluster.ask("POST", "/api/v2/sources", {"name": SOURCE, "url": server.reference_url(name),
                                                "tables": ["public.*"]}, kind="capture")
        source_s = took_s(site.source_settled, cluster, "the source")
        say(f"source of {tables} tables after {source_s} s")
        without = site.shares(min(seconds / 3, 60.0))
        say(f"without a changefeed: {without}")

        cluster.ask("POST", "/api/v2/changefeeds", {"id": FEED, "source": SOURCE, "sink": SINK,
                                                    "tables": ["public.*"]}, kind="capture")
        created_s = took_s(lambda: site.working() == tables, cluster, "all dispatchers")
        say(f"all dispatchers work after {created_s} s")
        with db.transaction():
            for n in range(tables):
                db.execute(f"INSERT INTO t{n} VALUES (1, 'a row')")
        row = db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        end = parse_lsn(row[0]) - 1
        delivered_s = took_s(lambda: site.checkpoint() >= end, cluster, "a row of each table")
        say(f"a row of each table delivered after {delivered_s} s")
        time.sleep(SETTLE_S)
        shares = site.shares(seconds)
        idle = round(shares["capture"] + shares["spark"], 4)
        say(f"idle: {shares}")
        return {
            "tables": tables, "source_s": source_s, "created_s": created_s, "create_goal_s": CREATE_GOAL_S,
            "delivered_s": delivered_s, "seconds": seconds, "cpu_share": shares, "cpu_share_without": without,
            "idle": idle, "idle_goal": IDLE_GOAL, "met": created_s <= CREATE_GOAL_S and idle < IDLE_GOAL,
        }


def schedule() -> dict[str, Any]:
    """In a process of its own, whose memory is counted."""
    made = subprocess.run([sys.executable, "-m", "millrace_sim.control.scale", "--json"], check=True, text=True,
                          capture_output=True)
    found: dict[str, Any] = json.loads(made.stdout)
    longest_s = max(found["longest_pass_s"], found["lost_capture_s"])
    return {**found, "pass_goal_s": PASS_GOAL_S, "memory_goal_mib": MEMORY_GOAL_MIB,
            "met": longest_s <= PASS_GOAL_S and found["memory_mib"] <= MEMORY_GOAL_MIB}


def idle_report(found: dict[str, Any]) -> list[str]:
    with_, without = found["cpu_share"], found["cpu_share_without"]
    rows = [f"| {kind} | {with_[kind]:.2%} | {without[kind]:.2%} |" for kind in ("capture", "spark", "broker")]
    works = (f"One changefeed of {found['tables']:,} tables: every dispatcher works {found['created_s']} s after it "
             f"was asked for (goal {found['create_goal_s']:g} s). A row of each table, committed together, is in its "
             f"topic within {found['delivered_s']} s. Three brokers, two captures, Spark and PostgreSQL share one "
             "machine.")
    idle = (f"CPU over {found['seconds']:g} s in which nothing happens, looks at the ends of all targets in them; "
            f"captures, Spark and its workers together {found['idle']:.2%} of a core (goal: below "
            f"{found['idle_goal']:.0%}):")
    table = ["| processes | CPU of a core | without a changefeed |", "|---|---:|---:|", *rows]
    return ["## A thousand tables", works, idle, "\n".join(table), machine_line(found)]


def schedule_report(found: dict[str, Any]) -> list[str]:
    figures = [
        ("longest pass while all are placed", f"{found['longest_pass_s']:.3f} s", f"{found['pass_goal_s']:g} s"),
        ("pass after a capture is lost", f"{found['lost_capture_s']:.3f} s", f"{found['pass_goal_s']:g} s"),
        ("pass after one dispatcher is gone", f"{found['one_change_s'] * 1000:.1f} ms", ""),
        ("pass while nothing happens", f"{found['idle_pass_s'] * 1000:.1f} ms", ""),
        ("checkpoint of the changefeed", f"{found['checkpoint_s'] * 1000:.1f} ms", ""),
        ("a new maintainer's replay", f"{found['replay_s']:.2f} s", ""),
        ("memory of the process", f"{found['memory_mib']:.0f} MiB", f"{found['memory_goal_mib']:g} MiB"),
    ]
    text = (f"{found['dispatchers']:,} dispatchers on {found['captures']} captures, simulated: the product's machines, "
            f"messages delivered at once. CPU of the maintainer's passes; all work after {found['passes']} of them.")
    table = ["| what | figure | goal |", "|---|---:|---:|", *(f"| {' | '.join(row)} |" for row in figures)]
    return ["## A hundred thousand dispatchers", text, "\n".join(table), machine_line(found)]


def machine_line(found: dict[str, Any]) -> str:
    return "Machine: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in found["machine"].items()) + "."


REPORTS = {"idle": idle_report, "schedule": schedule_report}


def report(parts: dict[str, Any]) -> str:
    made = "Made by `tests/perf/bench_changefeeds.py`; nothing here is typed in by hand."
    told = [text for name, write in REPORTS.items() if name in parts for text in write(parts[name])]
    return "\n\n".join(["# Changefeeds of many tables", made, *told]) + "\n"


def earlier(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(REPORTS))
    parser.add_argument("--tables", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=IDLE_S)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "idle": lambda: measure(options.tables, options.seconds, lambda text: print(text, flush=True)),
        "schedule": schedule,
    }
    parts = earlier(options.out / "changefeeds.json")
    for name in [options.only] if options.only else made:
        machine = machine_facts()
        parts[name] = {**made[name](), "machine": machine}
        (options.out / "changefeeds.json").write_text(json.dumps(parts, indent=2) + "\n")
        (options.out / "changefeeds.md").write_text(report(parts))


if __name__ == "__main__":
    main()
