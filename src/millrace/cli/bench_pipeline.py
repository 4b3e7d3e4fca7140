"""`millrace bench pipeline`: PostgreSQL to Debezium JSON that a consumer can see, beside Debezium if asked for.

    through  source and changefeed stand and wait, their role shut out ─▶ load ─▶ let in: slot taken … last message seen
    alone    a second changefeed over what is in the log by then: first … last message seen
    profile  a third one, its workers looked at by py-spy (cli.bench_profile): not in any other figure
    latency  single rows at a light pace: each from its commit to the message in a consumer's hand
    rounds   of dispatchers that move nothing (cli.bench_rounds)

Everything that takes part is up and warm before a clock starts. Nothing is typed in by hand: the report is made from
what was measured, and what a consumer then reads is counted.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
from rich.console import Console

from millrace.cli import bench_pipeline_report as report
from millrace.cli import bench_rounds
from millrace.cli.bench_log import busy_s, machine_facts
from millrace.cli.bench_pipeline_report import Found, Latency, Run
from millrace.cli.bench_profile import Profile, profiled
from millrace.cli.bench_site import Site, own_cpu_s, run_millrace, wait_slot_taken
from millrace.cli.bench_source import DATABASE, ROW, ROWS_PER_TRANSACTION, SERVER, TABLES
from millrace.cli.exits import FAILED, TIMED_OUT, CommandFailed
from millrace.cli.peer_debezium import Debezium
from millrace.errors import UnknownTopicOrPartition
from millrace.log.client import PlainClient
from millrace.model.tables import parse_lsn
from millrace.ops.processes import children_of
from millrace.source.server.embedded import PostgresServer, find_postgres

FULL, QUICK = 2_000_000, 40_000
SINGLES, SINGLE_EVERY_S = 200, 0.05
SINK = "kafka:?format=debezium-json&tombstones=false&partitions={partitions}&topic={topic}"
ROLE = "bench_reader"
WARMING, WARM_KEY = 20, 1_000_000_000
WAIT_S_MAX = 1800.0
LOOK_S = 0.02


def run(*, quick: bool, out: str, peer: str | None, peer_dir: str, rows: int | None, partitions: int) -> None:
    say = Console(stderr=True).print
    count = rows if rows is not None else QUICK if quick else FULL
    debezium = Debezium(peer_dir) if peer == "debezium" else None
    facts = {**machine_facts(), "partitions": partitions}
    directory = tempfile.mkdtemp(prefix="millrace-bench-")
    version = max(found.version[0] for found in find_postgres())
    server = PostgresServer(os.path.join(directory, "postgres"), version=version, settings=SERVER)
    try:
        with server:
            facts["postgresql"] = ".".join(map(str, server.installation.version))
            bench = Bench(server, os.path.join(directory, "cluster"), count, partitions, say)
            try:
                runs, latencies, profile = bench.measure(debezium)
            finally:
                bench.close()
    finally:
        server.remove()
        shutil.rmtree(directory, ignore_errors=True)
    say("rounds without work")
    report.write(out, facts, Found(runs, latencies, bench_rounds.measure(), profile), quick=quick, peer=peer)
    say(f"wrote {out}/pipeline.md and {out}/pipeline.json")


@dataclass
class Seen:
    """What a consumer could see of a topic: when it first grew, when it last did."""

    first: float = 0.0
    last: float = 0.0


class Bench:
    def __init__(self, server: PostgresServer, directory: str, count: int, partitions: int, say: Any) -> None:
        self.server, self.count, self.partitions, self.say = server, count, partitions, say
        self.site = Site(directory, 3, "group")
        self.db = psycopg.connect(server.url(DATABASE), autocommit=True)

    def close(self) -> None:
        self.db.close()
        self.site.down()

    def measure(self, debezium: Debezium | None) -> tuple[list[Run], list[Latency], Profile]:
        self._prepare()
        runs = [self._through(), self._alone()]
        profile = self._profile()
        latencies = [self._latency("millrace", "bench.orders")]
        for feed in ("profile", "alone", "bench"):
            run_millrace("changefeed", "remove", feed, "--wait", "--dir", self.site.dir)
        self.site.remove_source("bench")
        if debezium is not None:
            self.site.down()
            self.site.up(captures=0)
            run_millrace("topic", "create", "peer", "--partitions", str(self.partitions), "--dir", self.site.dir)
            runs.append(self._peer(debezium))
            latencies.append(self._peer_latency(debezium))
        return runs, latencies, profile

    # -- millrace ------------------------------------------------------------------------------------------------------
    def _prepare(self) -> None:
        """Source and changefeed on the empty table, Spark warm; then the source is shut out, and the load made."""
        self.say("preparing: a cluster with Spark, a source, a changefeed")
        self.db.execute(TABLES.format(table="orders").encode())
        self.db.execute("CREATE PUBLICATION peer FOR TABLE orders")
        self.db.execute(f"CREATE ROLE {ROLE} SUPERUSER REPLICATION LOGIN PASSWORD '{self.server.password}'".encode())
        self.site.up(spark=True)
        url = self.server.reference_url(DATABASE, secrets_dir=self.site.secrets_dir)
        url = url.replace("//postgres:", f"//{ROLE}:")
        run_millrace("source", "create", "bench", "--url", url, "--tables", "public.orders", "--partitions",
                     str(self.partitions), "--wait", "--dir", self.site.dir)
        self._create("bench", "bench.orders")
        self._warm("bench.orders")
        self.db.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
        self.db.execute(f"ALTER ROLE {ROLE} NOLOGIN".encode())
        self.db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (ROLE,))
        self.say(f"loading {self.count:,} rows")
        query = f"INSERT INTO orders SELECT {ROW} FROM generate_series(%s::bigint, %s) g"  # noqa: S608  our own names
        for first in range(1, self.count + 1, ROWS_PER_TRANSACTION):
            self.db.execute(query.encode(), (first, min(self.count, first + ROWS_PER_TRANSACTION - 1)))

    def _create(self, feed: str, topic: str) -> None:
        sink = SINK.format(partitions=self.partitions, topic=topic)
        run_millrace("changefeed", "create", feed, "--source", "bench", "--tables", "public.*", "--sink", sink,
                     "--wait", "--dir", self.site.dir)

    def _warm(self, topic: str) -> None:
        """Some rows that come and go: Spark has a session, workers, and code that is compiled."""
        with self._client() as client:
            query = f"INSERT INTO orders SELECT {ROW} FROM (SELECT %s::bigint AS g) r"  # noqa: S608  our own names
            for n in range(1, WARMING + 1):
                before = _total(client, topic)
                self.db.execute(query.encode(), (WARM_KEY + n,))
                self.db.execute("DELETE FROM orders WHERE id = %s", (WARM_KEY + n,))
                _wait(partial(_has_grown, client, topic, before), f"{topic} to have the rows that warm it")

    def _through(self) -> Run:
        with self._client() as client, self._machine() as machine:
            self.db.execute(f"ALTER ROLE {ROLE} LOGIN".encode())
            began, _ = wait_slot_taken(self.db, "millrace_bench")
            machine.begin()
            seen = self._until_done(client, "bench", "bench.orders")
            machine.end()
            bytes_ = self._check(client, "bench.orders")
        return self._told(
            Run("through", "millrace", self.count, seen.last - began, *machine.used, bytes_, machine.shares))

    def _alone(self) -> Run:
        """What the log has, by a changefeed that is new to it."""
        with self._client() as client, self._machine() as machine:
            with self._another(client, "alone"):
                machine.begin()
                seen = Seen(first=time.monotonic())
            seen.last = self._until_done(client, "alone", "alone.orders").last
            machine.end()
            bytes_ = self._check(client, "alone.orders")
        return self._told(
            Run("alone", "millrace", self.count, seen.last - seen.first, *machine.used, bytes_, machine.shares))

    def _profile(self) -> Profile:
        """The same once more, and what its workers do."""
        workers = [child for pid in self.site.pids("spark") for child in children_of(pid)]
        with self._client() as client, self._another(client, "profile"), profiled(workers) as profile:
            self._until_done(client, "profile", "profile.orders")
        self.say(f"  profile: {profile.trouble or f'{profile.samples:,} samples'}")
        return profile

    @contextmanager
    def _another(self, client: PlainClient, feed: str) -> Iterator[None]:
        """A changefeed over what the log has, from its first message on."""
        topic = f"{feed}.orders"
        creating = threading.Thread(target=self._create, args=(feed, topic))
        creating.start()
        _wait(lambda: _total(client, topic) > 0, f"the first message of changefeed {feed}")
        yield
        creating.join()

    def _until_done(self, client: PlainClient, feed: str, topic: str) -> Seen:
        """The topic is looked at; whether all is there is asked of the changefeed."""
        row = self.db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        end, seen, high, asked = parse_lsn(row[0]), Seen(), -1, time.monotonic()
        self.db.execute("SELECT pg_logical_emit_message(true, 'bench', 'end'), pg_switch_wal()")
        self.db.execute("SELECT pg_logical_emit_message(true, 'bench', 'end')")
        deadline = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < deadline:
            now, total = time.monotonic(), _total(client, topic)
            if total != high:
                seen.first, seen.last, high = seen.first or now, now, total
            elif now - max(asked, seen.last) > 1.0:      # it stands still: at the end, or only for a moment
                asked = now
                found = json.loads(run_millrace("changefeed", "get", feed, "-o", "json", "--dir", self.site.dir))
                if found["checkpoint"] and parse_lsn(found["checkpoint"]) >= end - 1 and _total(client, topic) == high:
                    return seen
            time.sleep(LOOK_S)
        raise CommandFailed(f"{topic}: not complete after {WAIT_S_MAX:g} s", TIMED_OUT)

    def _check(self, client: PlainClient, topic: str) -> int:
        """Bytes of its messages; each row of the load must be there, and once."""
        found, bytes_ = set[int](), 0
        for partition in range(self.partitions):
            start, end = client.ends(topic, partition)
            for page in client.read(topic, partition, start, end):
                for record in page:
                    key = json.loads(record.key or b"{}").get("id", -1)
                    if not 0 < key <= self.count or not record.value:
                        continue                         # of the warming
                    if key in found:
                        raise CommandFailed(f"{topic}: row {key} stands twice", FAILED)
                    found.add(key)
                    bytes_ += len(record.value) + len(record.key or b"")
        if len(found) != self.count:
            raise CommandFailed(f"{topic}: {len(found)} rows, {self.count} were written", FAILED)
        return bytes_

    # -- latency -------------------------------------------------------------------------------------------------------
    def _latency(self, who: str, topic: str) -> Latency:
        """Keys above those of the load, one after another; nobody waits for the one before."""
        arrived: dict[int, float] = {}
        with self._client() as client:
            stop = threading.Event()
            starts = {(topic, n): client.ends(topic, n)[1] for n in range(self.partitions)}
            consumer = threading.Thread(target=_consume, args=(client, starts, arrived, stop))
            consumer.start()
            committed: dict[int, float] = {}
            query = f"INSERT INTO orders SELECT {ROW} FROM (SELECT %s::bigint AS g) r"  # noqa: S608  our own names
            for n in range(self.count + 1, self.count + SINGLES + 1):
                self.db.execute(query.encode(), (n,))
                committed[n] = time.monotonic()
                time.sleep(SINGLE_EVERY_S)
            _wait(lambda: arrived.keys() >= committed.keys(), f"{SINGLES} single rows in {topic}")
            stop.set()
            consumer.join()
        self.db.execute("DELETE FROM orders WHERE id > %s", (self.count,))
        took = sorted((arrived[n] - committed[n]) * 1000 for n in committed)
        made = Latency(who, len(took), statistics.median(took), took[int(len(took) * 0.99)])
        self.say(f"  latency of {who}: {made.p50_ms:.0f} ms in the middle, {made.p99_ms:.0f} ms at 99 %")
        return made

    # -- the peer ------------------------------------------------------------------------------------------------------
    def _peer(self, debezium: Debezium) -> Run:
        with self._machine(spark=False) as machine:
            drained = debezium.drain(self.server.url(DATABASE), slot="peer", publication="peer", rows=self.count,
                                     bootstrap=",".join(self.site.bootstrap))
        others = max(0.0, machine.others_cores - (drained.cpu_s / max(machine.seconds, 0.1)))
        return self._told(Run("through", "Debezium", drained.rows, drained.seconds, drained.cpu_s, machine.brokers_s,
                              others, drained.json_bytes, {}))

    def _peer_latency(self, debezium: Debezium) -> Latency:
        self.db.execute("SELECT pg_drop_replication_slot('peer')")
        self.db.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
        drained = threading.Thread(target=lambda: debezium.drain(
            self.server.url(DATABASE), slot="peer", publication="peer", rows=SINGLES + WARMING,
            bootstrap=",".join(self.site.bootstrap), linger_ms=0))
        drained.start()
        wait_slot_taken(self.db, "peer")
        with self._client() as client:                   # warm, as we are
            before = _total(client, "peer")
            for n in range(1, WARMING + 1):
                self.db.execute("UPDATE orders SET note = 'warm' WHERE id = %s", (n,))
            _wait(lambda: _total(client, "peer") >= before + WARMING, "Debezium to flow")
        made = self._latency("Debezium", "peer")
        drained.join()
        return made

    # -- inside --------------------------------------------------------------------------------------------------------
    def _client(self) -> PlainClient:
        return PlainClient(self.site.bootstrap, client_id="bench", key=self.site.log_key)

    @contextmanager
    def _machine(self, *, spark: bool = True) -> Iterator[Machine]:
        machine = Machine(self.site, ("capture", "spark") if spark else ())
        machine.begin()
        yield machine
        if not machine.seconds:
            machine.end()

    def _told(self, done: Run) -> Run:
        self.say(f"  {done.case}, {done.who}: {done.rows_per_s:,.0f} rows/s, {done.rows_per_cpu_s:,.0f} per CPU-second")
        return done


class Machine:
    """CPU of those who take part, between two moments; brokers and everybody else beside it."""

    def __init__(self, site: Site, kinds: tuple[str, ...]) -> None:
        self._site, self._kinds = site, kinds
        self.seconds = 0.0

    def begin(self) -> None:
        self._began, self._before = time.monotonic(), self._now()

    def end(self) -> None:
        self.seconds = time.monotonic() - self._began
        self.client_s, self.brokers_s, self.busy_s, jvm_s, capture_s = (
            now - before for now, before in zip(self._now(), self._before, strict=True))
        self.shares = {"capture": capture_s, "Spark's JVM": jvm_s,
                       "Spark's Python workers": self.client_s - capture_s - jvm_s, "brokers": self.brokers_s}

    def _now(self) -> tuple[float, ...]:
        return (sum(map(self._site.cpu_s, self._kinds)), self._site.cpu_s("broker"), busy_s(),
                sum(map(own_cpu_s, self._site.pids("spark"))), self._site.cpu_s("capture"))

    @property
    def others_cores(self) -> float:
        """PostgreSQL's among them."""
        return max(0.0, self.busy_s - self.client_s - self.brokers_s) / max(self.seconds, 0.1)

    @property
    def used(self) -> tuple[float, float, float]:
        return self.client_s, self.brokers_s, self.others_cores


def _total(client: PlainClient, topic: str) -> int:
    """Up to where consumers may read, over all partitions."""
    try:
        return sum(client.ends(topic, partition.index)[1] for partition in client.topic(topic).partitions)
    except UnknownTopicOrPartition:
        return 0


def _has_grown(client: PlainClient, topic: str, before: int) -> bool:
    return _total(client, topic) >= before + 2           # an insert and a delete


def _consume(client: PlainClient, nexts: dict[tuple[str, int], int], arrived: dict[int, float],
             stop: threading.Event) -> None:
    while not stop.is_set():
        for where, found in client.fetch(nexts, wait_s=0.2).items():
            now, nexts[where] = time.monotonic(), found.next_offset
            for record in found.records:
                if record.key is not None:
                    arrived.setdefault(int(json.loads(record.key)["id"]), now)


def _wait(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 300.0
    while not holds():
        if time.monotonic() > deadline:
            raise CommandFailed(f"waited in vain for {what}", TIMED_OUT)
        time.sleep(LOOK_S)
