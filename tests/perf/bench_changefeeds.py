"""Changefeeds of many tables. Writes docs/benchmarks/changefeeds.md and changefeeds.json.

    python tests/perf/bench_changefeeds.py [--only idle|schedule|expressions] [--tables 1000] [--seconds 150] [--out D]

idle      a changefeed of a thousand tables: how soon it works, and what it costs while nothing happens. Three brokers,
          two captures, a Spark Connect server and PostgreSQL of their own, on this machine, with default settings,
          started by `millrace up`
schedule  a hundred thousand dispatchers on a hundred captures, simulated: what a pass of their maintainer costs
expressions  a tenth of the tables, without and with a filter: Spark judges the rows of one table at a time

A part that is not run keeps the figures it had. Nothing in the report is typed in by hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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
WAIT_S = 600.0
KINDS = ("capture", "spark", "broker")
FEED, SOURCE = "bench", "bench"
SINK = "kafka:?format=debezium-json&partitions=1"


class Site:
    """A cluster with Spark, a database with tables, and a source of them."""

    def __init__(self, cluster: LocalCluster, db: psycopg.Connection[Any], tables: int) -> None:
        self.cluster, self.db, self.tables = cluster, db, tables

    def get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.ask("GET", f"/api/v2/{path}", kind="capture")
        return found

    def post(self, path: str, body: dict[str, Any]) -> None:
        self.cluster.ask("POST", f"/api/v2/{path}", body, kind="capture")

    def until_s(self, condition: Callable[[], bool], what: str) -> float:
        """How long it took."""
        began = time.monotonic()
        self.cluster.wait_for(condition, what, WAIT_S)
        return round(time.monotonic() - began, 1)

    def source(self, url: str) -> float:
        for n in range(self.tables):
            self.db.execute(f"CREATE TABLE t{n} (id bigint PRIMARY KEY, note text)")
        self.post("sources", {"name": SOURCE, "url": url, "tables": ["public.*"]})
        return self.until_s(self._is_settled, "the source")

    def _is_settled(self) -> bool:
        found = self.get(f"sources/{SOURCE}")
        return found["state"] == "streaming" and not [one for one in found["copies"] if one["state"] != "done"]

    def feed(self, name: str, sink: str, settings: list[dict[str, str]]) -> float:
        self.post("changefeeds", {"id": name, "source": SOURCE, "sink": sink, "tables": ["public.*"],
                                  "settings": settings})
        return self.until_s(lambda: self.get(f"changefeeds/{name}")["working_count"] == self.tables, "all dispatchers")

    def row_each(self, name: str, key: int) -> float:
        """A row of each table, committed together, and delivered."""
        with self.db.transaction():
            for n in range(self.tables):
                self.db.execute(f"INSERT INTO t{n} VALUES (%s, 'a row')", (key,))
        row = self.db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        end = parse_lsn(row[0]) - 1
        return self.until_s(lambda: parse_lsn(self.get(f"changefeeds/{name}")["checkpoint"] or "0/0") >= end,
                            "a row of each table")

    def pids(self, kind: str) -> list[int]:
        own = [one["pid"] for one in Layout(self.cluster.dir).read_state()["children"] if one["kind"] == kind]
        return [pid for one in own for pid in (one, *children_of(one))]

    def shares(self, seconds: float) -> dict[str, float]:
        """Of a core."""
        before, began = {kind: self.used_s(kind) for kind in KINDS}, time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        return {kind: round(_more_s(before[kind], self.used_s(kind)) / elapsed, 4) for kind in KINDS}

    def used_s(self, *kinds: str) -> dict[int, float]:
        return {pid: cpu_s([pid]) for kind in kinds for pid in self.pids(kind)}


def _more_s(before: dict[int, float], after: dict[int, float]) -> float:
    """Of those that are there, also new ones: a worker that ends while nothing happens takes its past with it."""
    return sum(used - before.get(pid, 0.0) for pid, used in after.items())


@contextmanager
def site_of(tables: int, captures: int) -> Iterator[tuple[Site, float]]:
    """With how long its source took."""
    with (
        server_of(15) as server, database(server) as name,
        psycopg.connect(server.url(name), autocommit=True) as db,
        LocalCluster(3, captures=captures, spark=True) as cluster,
    ):
        site = Site(cluster, db, tables)
        source_s = site.source(server.reference_url(name, secrets_dir=cluster.secrets_dir))
        say(f"source of {tables} tables after {source_s} s")
        yield site, source_s


def idle(tables: int, seconds: float) -> dict[str, Any]:
    with site_of(tables, captures=2) as (site, source_s):
        without = site.shares(min(seconds / 3, 60.0))
        say(f"without a changefeed: {without}")
        created_s = site.feed(FEED, SINK, [])
        say(f"all dispatchers work after {created_s} s")
        delivered_s = site.row_each(FEED, 1)
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


def expressions(tables: int) -> dict[str, Any]:
    """The same tables without and with a filter, one after the other; each row delivered twice, the second one warm."""
    found: dict[str, Any] = {"tables": tables}
    with site_of(tables, captures=1) as (site, _):
        for name, settings in {"plain": [], "filtered": [{"tables": "public.*", "filter": "id > 0"}]}.items():
            created_s = site.feed(name, f"{SINK}&topic={name}.{{table}}", settings)
            site.row_each(name, 1 + 2 * len(found))
            before = site.used_s("capture", "spark")
            delivered_s = site.row_each(name, 2 + 2 * len(found))
            used_s = _more_s(before, site.used_s("capture", "spark"))
            found[name] = {"created_s": created_s, "delivered_s": delivered_s,
                           "cpu_ms": round(used_s * 1000 / tables, 1)}
            say(f"{name}: {found[name]}")
            site.post(f"changefeeds/{name}/pause", {})
    return found


def say(text: str) -> None:
    print(text, flush=True)


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
    rows = [f"| {kind} | {with_[kind]:.2%} | {without[kind]:.2%} |" for kind in KINDS]
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


def expressions_report(found: dict[str, Any]) -> list[str]:
    text = (f"{found['tables']:,} tables, a row of each committed together, in a changefeed without and in one with a "
            "filter on each table, whose rows Spark judges in a job for each table: a row that breaks an expression "
            "fails its job, and must not fail others. CPU of the capture, Spark and its workers.")
    rows = [f"| {name} | {one['created_s']} s | {one['delivered_s']} s | {one['cpu_ms']:.1f} ms |"
            for name in ("plain", "filtered") for one in (found[name],)]
    table = ["| changefeed | works after | delivered after | CPU per table |", "|---|---:|---:|---:|", *rows]
    return ["## Tables with expressions", text, "\n".join(table), machine_line(found)]


def machine_line(found: dict[str, Any]) -> str:
    return "Machine: " + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in found["machine"].items()) + "."


REPORTS = {"idle": idle_report, "schedule": schedule_report, "expressions": expressions_report}


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
        "idle": partial(idle, options.tables, options.seconds),
        "schedule": schedule,
        "expressions": partial(expressions, max(1, options.tables // 10)),
    }
    parts = earlier(options.out / "changefeeds.json")
    for name in [options.only] if options.only else made:
        machine = machine_facts()
        parts[name] = {**made[name](), "machine": machine}
        (options.out / "changefeeds.json").write_text(json.dumps(parts, indent=2) + "\n")
        (options.out / "changefeeds.md").write_text(report(parts))


if __name__ == "__main__":
    main()
