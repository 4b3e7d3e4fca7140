"""A changefeed of a thousand tables: how soon it works, and what it costs while nothing happens. Writes
docs/benchmarks/changefeeds.md and changefeeds.json.

    python tests/perf/bench_idle.py [--tables 1000] [--seconds 660] [--out DIR]

Three brokers, two captures, a Spark Connect server and PostgreSQL of their own, on this machine, with default settings,
started by `millrace up`. Nothing in the report is typed in by hand.
"""

from __future__ import annotations

import argparse
import json
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


def report(found: dict[str, Any], machine: dict[str, Any]) -> str:
    with_, without = found["cpu_share"], found["cpu_share_without"]
    rows = [f"| {kind} | {with_[kind]:.2%} | {without[kind]:.2%} |" for kind in ("capture", "spark", "broker")]
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items())
    made = ("Made by `tests/perf/bench_idle.py`; nothing here is typed in by hand. Three brokers, two captures, Spark "
            "and PostgreSQL share one machine.")
    works = (f"One changefeed of {found['tables']:,} tables: every dispatcher works {found['created_s']} s after it "
             f"was asked for (goal {found['create_goal_s']:g} s). A row of each table, committed together, is in its "
             f"topic within {found['delivered_s']} s.")
    idle = (f"CPU over {found['seconds']:g} s in which nothing happens; captures, Spark and its workers together "
            f"{found['idle']:.2%} of a core (goal: below {found['idle_goal']:.0%}):")
    table = ["| processes | CPU of a core | without a changefeed |", "|---|---:|---:|", *rows]
    paragraphs = ["# A changefeed of many tables", made, works, idle, "\n".join(table), f"Machine: {facts}."]
    return "\n\n".join(paragraphs) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=limits.ENDS_REFRESH_S + 60)    # else no look at ends is in it
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args()
    machine = machine_facts()
    found = measure(options.tables, options.seconds, lambda text: print(text, flush=True))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "changefeeds.json").write_text(json.dumps({**found, "machine": machine}, indent=2) + "\n")
    (options.out / "changefeeds.md").write_text(report(found, machine))


if __name__ == "__main__":
    main()
