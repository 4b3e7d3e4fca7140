"""Writers, copies and a stream while captures and brokers are killed (-9) and paused: the log equals the database.

The short form runs in CI; the long one is 10 minutes (`make chaos`). The seed gives the order of harm and what the
writers do, not the interleaving: these are real processes.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from support_postgres import database, run, server_of
from support_source_world import PASSWORD, STREAMED, SourceWorld, make_plain_role
from support_workload import Workload, create_tables

OPTIONS = ["--partitions", "2", "--carry-whole", "public.whole"]


class Nemesis:
    """One stroke every few seconds, on a thread of its own."""

    def __init__(self, world: SourceWorld, seed: int, *, url: str, every_s: tuple[float, float]) -> None:
        self.world, self.rng, self.url, self.every_s = world, random.Random(seed), url, every_s
        self.count: Counter[str] = Counter()
        self.failed: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nemesis", daemon=True)
        self._strokes: list[Callable[[], None]] = [
            self.kill_reader, self.kill_reader, self.kill_capture, self.pause_reader, self.pause_reader,
            self.kill_broker, self.kill_broker, self.pause_broker, self.kill_reader_and_broker, self.end_sessions,
        ]

    def __enter__(self) -> Nemesis:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self.failed is None, self.failed

    def _run(self) -> None:
        try:
            while not self._stop.wait(self.rng.uniform(*self.every_s)):
                stroke = self.rng.choice(self._strokes)
                stroke()
                self.count[stroke.__name__] += 1
        except BaseException as error:
            self.failed = error

    def _signal(self, pid: int | None, number: int) -> None:
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def _reader(self) -> int | None:
        """The capture that holds the walsender: the coordinator reads, for now."""
        status = self.world.cluster.status()
        return next((c["pid"] for c in status["captures"] if c["id"] == status["coordinator"]), None)

    def _any(self, kind: str) -> int | None:
        pids = [p["pid"] for p in self.world.cluster.status()[kind] if p["pid"] is not None]
        return self.rng.choice(pids) if pids else None

    def _pause(self, pid: int | None, seconds: float) -> None:
        self._signal(pid, signal.SIGSTOP)
        self._stop.wait(seconds)
        self._signal(pid, signal.SIGCONT)

    def kill_reader(self) -> None:
        self._signal(self._reader(), signal.SIGKILL)

    def kill_capture(self) -> None:
        self._signal(self._any("captures"), signal.SIGKILL)

    def pause_reader(self) -> None:
        """Longer than its session: somebody else reads, and it comes back believing that it still does."""
        self._pause(self._reader(), self.rng.uniform(1.0, 5.0))

    def kill_broker(self) -> None:
        self._signal(self._any("brokers"), signal.SIGKILL)

    def pause_broker(self) -> None:
        self._pause(self._any("brokers"), self.rng.uniform(0.5, 3.0))

    def end_sessions(self) -> None:
        """The stream's, the holder's of the snapshot, the copies': as an operator of the database may."""
        run(self.url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                      " WHERE application_name LIKE 'millrace%' AND random() < 0.7")

    def kill_reader_and_broker(self) -> None:
        self.kill_broker()
        self.kill_reader()


def chaos(seconds: float, seed: int, *, version: int, is_plain: bool, large_every: int, ddl_every: int,
          every_s: tuple[float, float]) -> None:
    """Seeds that are odd let the first copy end in peace. `is_plain`: a role that may have no event triggers."""
    with server_of(version, STREAMED) as server, database(server) as name, SourceWorld(captures=2) as world:
        user = make_plain_role(server, name) if is_plain else "postgres"
        url = server.url(name, user=user, password=PASSWORD if is_plain else None)
        create_tables(url, whole=True)
        with Workload(url, seed=seed, large_rows=20_000, large_every=large_every, ddl_every=ddl_every,
                      pace_s=0.02) as work, \
                world.source(server, name, user=user, options=OPTIONS, wait=False) as source:
            if seed % 2:
                source.wait_settled(120)
            with Nemesis(world, seed, url=source.url, every_s=every_s) as nemesis:
                time.sleep(seconds)
            counts = work.stop()
            rebuild = source.verify(timeout_s=120)
            print(f"seed {seed}: {dict(nemesis.count)}; {dict(counts)}; {dict(rebuild.counts)}")
            assert sum(nemesis.count.values()) >= seconds / 10


@pytest.mark.timeout(240)
def test_S3_S5_S8_equal_under_kills_and_pauses() -> None:
    chaos(15.0, 20, version=18, is_plain=False, large_every=300, ddl_every=15, every_s=(0.7, 3.0))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_plain", [False, True], ids=["superuser", "plain"])
@pytest.mark.parametrize("version", [15, 18], ids=["pg15", "pg18"])
def test_S3_S5_S8_equal_under_kills_and_pauses_for_minutes(version: int, is_plain: bool) -> None:
    seed = int(os.environ.get("CHAOS_SEED", str(version)))
    chaos(600.0, seed, version=version, is_plain=is_plain, large_every=2000, ddl_every=300, every_s=(1.0, 8.0))
