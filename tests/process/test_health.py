"""What a user would call broken is seen by `status --check`, by metrics and by the shipped alert rules, and is over
when it is mended [A9]. The long form runs every condition on a whole site with Prometheus, and writes
docs/benchmarks/health.md."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from millrace import limits
from millrace.cli.bench_log import machine_facts
from support_cluster import wait_for
from support_health import FOR_S, HealthSite, Stopwatch, stopped
from support_postgres import database, server_of

ROOT = Path(__file__).parents[2]
GOAL_S = 15.0
ONLY = tuple(filter(None, os.environ.get("MILLRACE_HEALTH_ONLY", "").split(",")))   # the others keep their figures
CLEAR_S = 240.0                    # a capture that was put out starts anew: Python alone takes a minute at load 30
DEADLINE_S = 90.0                  # a busy machine; the page shows what it took
RESTART_S = 240.0                  # of one process, for the same reason as CLEAR_S
QUIET_S = 2 * GOAL_S + FOR_S       # after a restart nothing is found and nothing fires for so long without a break


# -- in CI: two conditions, without Spark and Prometheus --------------------------------------------------------------


@pytest.mark.timeout(180)
def test_A9_B2_a_database_that_is_down_and_an_absent_spark_are_seen_and_named(tmp_path: Path) -> None:
    with server_of(15) as server, database(server) as name:
        site = HealthSite(tmp_path / "cluster", server, name, brokers=1, captures=1)
        site.up("--no-spark")
        try:
            assert site.millrace("status", "--check").returncode == 0
            made = site.make(timeout_s=8.0, check=False)
            assert (made.returncode, "still warning: no Spark: " in made.stderr) == (7, True), made
            wait_for(lambda: site.codes() == {"spark_absent", "changefeed_without_spark"}, "Spark to be missed", 60.0)
            assert site.ask("/api/v2/changefeeds/orders")["state"] == "warning"
            server.stop()
            wait_for(lambda: "source_unreachable" in site.codes(), "the database to be missed", 60.0)
            done = site.millrace("status", "--check", check=False)
            assert done.returncode == 10
            assert "source_unreachable" in done.stdout
            found = site.ask("/api/v2/changefeeds/orders")
            assert found["why"].startswith("source shop is ")
            assert (found["lag_s"], found["lag_bytes"]) == (None, None)
            assert "unknown" in site.millrace("changefeed", "list").stdout
            wait_for(lambda: {"source_unreachable", "spark_absent"} <= site.metric_codes(), "both in metrics", 60.0)
            server.start()
            wait_for(lambda: not site.codes() & {"source_unreachable", "changefeed_without_source"}, "health", 60.0)
        finally:
            site.close()


# -- the long form ----------------------------------------------------------------------------------------------------


class Condition(NamedTuple):
    """`code` in `status`, `metric` in metrics (`down KIND`: a process that does not answer), `alert` in Prometheus.
    `after_s`: how long it must last by definition before it is called so."""

    name: str
    code: str
    metric: str
    alert: str
    broken: Callable[[HealthSite], AbstractContextManager[None]]
    after_s: float = 0.0


@contextlib.contextmanager
def postgres_down(site: HealthSite) -> Iterator[None]:
    site.server.stop()
    yield
    site.server.start()


@contextlib.contextmanager
def password_wrong(site: HealthSite) -> Iterator[None]:
    with psycopg.connect(site.url, autocommit=True) as admin:
        (kept,) = admin.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'postgres'").fetchone() or ("",)
        admin.execute("ALTER ROLE postgres PASSWORD 'rotated'")
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                      " AND application_name LIKE 'millrace%'")
        yield
        admin.execute(f"ALTER ROLE postgres PASSWORD '{kept}'")        # type: ignore[call-overload]


@contextlib.contextmanager
def slot_nearly_full(site: HealthSite) -> Iterator[None]:
    """An open transaction keeps the slot where it is, and the server writes on."""
    site.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '176MB'", "SELECT pg_reload_conf()")
    with psycopg.connect(site.url) as holder:
        holder.execute("UPDATE flags SET note = 'held' WHERE id = 2")
        site.sql("CHECKPOINT")
        for _ in range(9):
            site.sql("SELECT pg_logical_emit_message(false, 'fill', repeat('x', 1000000)) FROM generate_series(1, 15)",
                     "SELECT pg_switch_wal()")
        yield
        holder.rollback()
    site.sql("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()", "CHECKPOINT")
    site.sql("UPDATE flags SET note = 'freed' WHERE id = 2")


def spark_absent(site: HealthSite) -> AbstractContextManager[None]:
    return stopped(site.pids("spark"))


def workers_frozen(site: HealthSite) -> AbstractContextManager[None]:
    return stopped(wait_for(site.workers, "Python workers of Spark"))


@contextlib.contextmanager
def table_isolated(site: HealthSite) -> Iterator[None]:
    site.sql("ALTER TABLE flags DROP COLUMN flag")
    yield
    spec = site.dir.parent / "mended.yaml"
    spec.write_text(json.dumps({"settings": []}))
    site.millrace("changefeed", "update", "orders", "--config", str(spec))


@contextlib.contextmanager
def rows_in_quarantine(site: HealthSite) -> Iterator[None]:
    site.sql("UPDATE orders SET note = repeat('x', 1500000) WHERE id = 7")
    yield
    site.millrace("quarantine", "drop", "orders", "--all")


def lagging(site: HealthSite) -> AbstractContextManager[None]:
    """The one broker that has a target is gone."""
    controller = site.status()["controller"]
    leaders = [site.topic(f"shop.public.{table}")["partitions"][0]["leader"] for table in ("orders", "flags")]
    return stopped([site.pid_of("broker", next(leader for leader in leaders if leader != controller))])


def broker_dead(site: HealthSite) -> AbstractContextManager[None]:
    controller = site.status()["controller"]
    return stopped([site.pid_of("broker", next(n for n in range(site.brokers) if n != controller))])


def capture_dead(site: HealthSite) -> AbstractContextManager[None]:
    coordinator = site.status()["coordinator"]
    return stopped([site.pid_of("capture", 1 - coordinator)])


@contextlib.contextmanager
def disk_full(site: HealthSite) -> Iterator[None]:
    """The data directory of the last broker is on a disk of its own, see `small_disk`."""
    where = site.dir / f"broker-{site.brokers - 1}"
    usage = os.statvfs(where)
    (where / "filler").write_bytes(b"")
    os.posix_fallocate(fd := os.open(where / "filler", os.O_RDWR), 0, int(usage.f_bavail * usage.f_frsize * 0.97))
    os.close(fd)
    yield
    (where / "filler").unlink()


CONDITIONS = [
    Condition("PostgreSQL down", "source_unreachable", "source_unreachable", "MillraceSourceUnreachable",
              postgres_down),
    Condition("password wrong", "source_auth_failed", "source_auth_failed", "MillraceSourceFailed", password_wrong),
    Condition("slot nearly full", "slot_nearly_full", "slot_nearly_full", "MillraceSlotBudget", slot_nearly_full),
    Condition("Spark absent", "spark_absent", "spark_absent", "MillraceSparkAbsent", spark_absent),
    Condition("workers frozen", "changefeed_stuck", "changefeed_stuck", "MillraceChangefeedStuck", workers_frozen,
              limits.ROUND_STUCK_S),
    Condition("rows in quarantine", "rows_in_quarantine", "rows_in_quarantine", "MillraceRowsInQuarantine",
              rows_in_quarantine),
    Condition("changefeed lagging", "changefeed_lagging", "changefeed_lagging", "MillraceChangefeedLagging", lagging,
              limits.FEED_LAG_WARN_S),
    Condition("broker dead", "broker_missing", "broker_missing", "MillraceBrokerDown", broker_dead),
    Condition("capture dead", "capture_missing", "down capture", "MillraceCaptureDown", capture_dead),
    Condition("disk full", "disk_full", "disk_full", "MillraceDiskFull", disk_full),
    Condition("table isolated", "table_isolated", "table_isolated", "MillraceTableIsolated", table_isolated),
]


@contextlib.contextmanager
def small_disk(where: Path) -> Iterator[None]:
    where.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(where)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def measured(site: HealthSite, condition: Condition) -> dict[str, Any]:
    code = condition.code
    with condition.broken(site):
        seen = Stopwatch(condition.name).until({
            "status": lambda: code in site.codes(),
            "metric": lambda: condition.metric in site.metric_codes(),
            "alert": lambda: condition.alert in site.firing(),
        }, DEADLINE_S + condition.after_s)
        assert site.millrace("status", "--check", check=False).returncode == 10
        mended = time.monotonic()
    spent_s = time.monotonic() - mended
    cleared = Stopwatch(f"{condition.name}, mended").until({
        "status": lambda: code not in site.codes(),
        "metric": lambda: condition.metric not in site.metric_codes(),
        "alert": lambda: condition.alert not in site.firing(),
    }, CLEAR_S)
    all_well(site, f"after {condition.name}")
    return {"condition": condition.name, "code": code, "alert_name": condition.alert, "after_s": condition.after_s,
            "seen": seen, "cleared": cleared, "mending_s": round(spent_s, 1)}


def attempted(site: HealthSite, condition: Condition, failed: list[str]) -> dict[str, Any] | None:
    """None: it was not seen, or is not over; the others are measured all the same."""
    try:
        found = measured(site, condition)
    except AssertionError as error:
        failed.append(f"{condition.name}: {error}")
        print(failed[-1], flush=True)
        return None
    print(json.dumps(found), flush=True)
    return found


def all_well(site: HealthSite, when: str) -> None:
    def well() -> bool:
        return site.status()["healthy"] and not site.firing()

    try:
        wait_for(well, f"everything to be well {when}", CLEAR_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {site.status()['findings']}, firing {site.firing()}") from None


def quiet_since(site: HealthSite, when: str) -> float:
    """The moment from which on nothing is found and nothing fires; it has lasted for QUIET_S then."""
    deadline, since, quiet_s = time.monotonic() + CLEAR_S, None, 0.0
    found: object = "nobody could look"
    while since is None or quiet_s < QUIET_S:
        looked = time.monotonic()
        with contextlib.suppress(OSError):                     # Prometheus is late: not a look
            found = (site.status()["findings"], site.firing())
            since = (looked if since is None else since) if found == ([], set()) else None
            quiet_s = looked - since if since is not None else 0.0
        assert looked < deadline + (QUIET_S if since is not None else 0.0), f"not well {when}: {found}"
        time.sleep(0.2)
    return since


def rolling_restart(site: HealthSite) -> None:
    """One process after the other; the next when all are alive."""
    for kind, count in (("broker", site.brokers), ("capture", site.captures)):
        for number in range(count):
            before = site.pid_of(kind, number)
            os.kill(before, signal.SIGTERM)
            wait_for(lambda kind=kind, number=number, before=before: site.pid_of(kind, number) != before and {
                one["liveness"] for one in site.status()[f"{kind}s"]} == {"alive"}, f"{kind} {number} to be back",
                RESTART_S)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")   # a scrape that was given up in mid-air
def test_A9_B3_every_condition_is_seen_by_status_metric_and_alert_and_is_over_when_mended(tmp_path: Path) -> None:
    with server_of(15, {"checkpoint_timeout": "30s"}) as server, database(server) as name:
        site, failed = HealthSite(tmp_path / "cluster", server, name, brokers=3, captures=2), list[str]()
        with small_disk(site.dir / "broker-2"):
            site.up("--spark")
            try:
                wait_for(lambda: site.status()["spark"]["liveness"] == "alive", "Spark", RESTART_S)
                site.make([{"tables": "public.flags", "filter": "flag > 0"}])
                site.start_writing()
                site.start_prometheus()
                all_well(site, "at the beginning")
                found = [one for condition in CONDITIONS if not ONLY or condition.name in ONLY
                         if (one := attempted(site, condition, failed)) is not None]
                restarts = dict[str, Restart]()
                for what, restart in (("rolling restart", rolling_restart), ("down and up", down_and_up)):
                    restarts[what] = restarted(site, what, restart, failed)
            finally:
                site.close()
    write_page(found, restarts)
    slow = [one["condition"] for one in found
            if max(one["seen"]["status"], one["seen"]["metric"]) > one["after_s"] + 3 * GOAL_S]
    assert (failed, slow) == ([], [])


class Restart(NamedTuple):
    """`took_s`: the restart itself. `quiet_after_s`: from its end until nothing was found and nothing fired any more;
    None: not in time. `fired`: alerts that fired on the way and are over."""

    took_s: float
    quiet_after_s: float | None
    fired: list[str]


def restarted(site: HealthSite, what: str, restart: Callable[[HealthSite], None], failed: list[str]) -> Restart:
    began = time.monotonic()
    took_s, quiet_after_s = 0.0, None
    try:
        restart(site)
        ended = time.monotonic()
        took_s = round(ended - began, 1)
        quiet_after_s = round(max(0.0, quiet_since(site, f"after a {what}") - ended), 1)
        assert site.millrace("status", "--check").returncode == 0
    except AssertionError as error:
        failed.append(f"{what}: {error}")
        print(failed[-1], flush=True)
    found = Restart(took_s, quiet_after_s, sorted(site.fired(time.monotonic() - began)))
    print(what, found, flush=True)
    return found


def down_and_up(site: HealthSite) -> None:
    site.millrace("down")
    site.up("--spark")
    wait_for(lambda: site.status()["spark"]["liveness"] == "alive", "Spark", RESTART_S)


def write_page(found: list[dict[str, Any]], restarts: dict[str, Restart]) -> None:
    machine = machine_facts()
    page = ROOT / "docs" / "benchmarks"
    if ONLY:
        before = {one["condition"]: one for one in json.loads((page / "health.json").read_text())["conditions"]}
        measured_now = {one["condition"]: one for one in found}
        found = [one for c in CONDITIONS if (one := (before | measured_now).get(c.name)) is not None]
    (page / "health.json").write_text(json.dumps(
        {"conditions": found, "restarts": {what: one._asdict() for what, one in restarts.items()}, "for_s": FOR_S,
         "machine": machine}, indent=2) + "\n")
    rows = [f"| {one['condition']} | `{one['code']}` | {_from(one, 'status')} | {_from(one, 'metric')} | "
            f"{one['alert_name']} | {_from(one, 'alert')} | {one['cleared']['status']:.1f} | "
            f"{one['cleared']['metric']:.1f} | {one['cleared']['alert']:.1f} |" for one in found]
    again = [f"| {what} | {one.took_s:.1f} | {'not in time' if one.quiet_after_s is None else one.quiet_after_s} | "
             f"{', '.join(one.fired) or 'none'} |" for what, one in restarts.items()]
    (page / "health.md").write_text(f"""\
# How soon trouble is seen

Made by `tests/process/test_health.py`; nothing here is typed in by hand.

Three brokers, two captures, Spark, PostgreSQL, a writer and Prometheus (scraping and evaluating every 2 s, every `for:`
of the shipped rules shortened to {FOR_S} s) share one machine. Seconds from the moment something breaks until
`status --check` exits 10 with the finding, `millrace_health_finding` has it (of a dead capture: it answers no scrape),
and the alert fires; then from the moment it is mended until each of them is over. Goal: status and metric within
{GOAL_S:g} s, alerts within `for:` and {GOAL_S:g} s. `a + b`: b seconds after the condition has lasted the a seconds
that define it.

| condition | finding | status | metric | alert | fires | status clears | metric clears | alert clears |
|---|---|---:|---:|---|---:|---:|---:|---:|
{chr(10).join(rows)}

{_missing(found)}After each of these was mended nothing was found and no alert fired.

## Clean restarts

A rolling restart ends and starts each broker and each capture, one after the other; `down` and `up` all of them at
once, with Spark. Seconds that it took; seconds from its end until nothing is found and no alert fires, which then lasts
for {QUIET_S:g} s; the alerts that fired on the way and are over (`for:` is {FOR_S} s here, and longer as shipped).

| restart | took | quiet after | fired on the way |
|---|---:|---:|---|
{chr(10).join(again)}

Machine: {", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items())}.
""")


def _missing(found: list[dict[str, Any]]) -> str:
    measured_now = {one["condition"] for one in found}
    missing = [condition.name for condition in CONDITIONS if condition.name not in measured_now]
    return f"Without figures, since it was not over in time: {', '.join(missing)}.\n\n" if missing else ""


def _from(one: dict[str, Any], what: str) -> str:
    seconds = one["seen"][what]
    return f"{one['after_s']:g} + {max(0.0, seconds - one['after_s']):.1f}" if one["after_s"] else f"{seconds:.1f}"
