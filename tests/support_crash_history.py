"""Histories of a data directory on a disk that forgets, beside the model of what may be left of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from millrace.errors import DiskFailed
from millrace.log.files.log_dir import LogDir
from millrace.log.files.partition_log import PartitionLog
from millrace_sim.disk import SimDisk
from support_logfiles import Crash, CrashingFs, Model, Version, batch, batch_end, content, open_dir, tp

LOGS = 3


class Life(NamedTuple):
    """One run of the process, and how it ends."""

    operations: list[tuple[Any, ...]]
    power: bool            # the power goes, not only the process
    in_last: int           # the process ends at this file call of its last operation
    in_recovery: int       # and the next one at this call of its start
    after: bool            # behind the call, not before it
    failures: int          # so many syncs fail at the end


class History:
    """The directory under test beside the model of each of its logs."""

    def __init__(self, seed: int, *, scatter: bool, flush: str = "group") -> None:
        self.disk = SimDisk(seed)
        self.disk.scatter = scatter
        self.fs = CrashingFs(self.disk)
        self.flush = flush
        self.boot = 1
        self.epoch = 0
        self.models = [Model() for _ in range(LOGS)]
        self.round: tuple[list[object], list[tuple[int, int, int]]] | None = None
        self.catching: tuple[list[Any], int | None] | None = None
        self.crashed_inside = False
        self.directory = self._open()

    def _open(self) -> LogDir:
        return open_dir(self.fs, boot=f"boot-{self.boot}", flush=self.flush)

    def log(self, n: int) -> PartitionLog:
        return self.directory.partition(tp(n))

    # -- operations; the model steps first: a crash inside may have done it or not ----------------------------------

    def append(self, n: int, size: int, fill: int) -> None:
        log, model = self.log(n), self.models[n]
        self.epoch += fill % 3 == 0
        data = batch(size, count=1 + fill % 4, fill=fill, base_offset=log.log_end, leader_epoch=self.epoch)
        model.step(Version({**model.now.batches, log.log_end: bytes(data)}, model.now.start))
        log.append(data, epoch=self.epoch)

    def truncate(self, n: int, share: float) -> None:
        log, model = self.log(n), self.models[n]
        bases = [o for o in model.now.batches if o >= log.log_start]
        if not bases:
            return
        to = bases[int(share * len(bases)) % len(bases)]
        kept = {o: b for o, b in model.now.batches.items() if o < to}
        model.step(Version(kept, min(model.now.start, to), cut=to))
        assert log.truncate(to) == to

    def restart(self, n: int, share: float) -> None:
        log, model = self.log(n), self.models[n]
        at = log.log_end + int(share * 10)
        model.step(Version({}, at, cut=0))
        log.restart_at(at)

    def retain(self, n: int, share: float) -> None:
        log, model = self.log(n), self.models[n]
        at = min(log.log_start + int(share * (log.log_end - log.log_start)), log.durable_end)
        if at <= log.log_start:
            return
        model.step(Version({o: b for o, b in model.now.batches.items() if batch_end(o, b) > at}, at))
        log.delete_before(at)

    def delete(self, n: int) -> None:
        self.models[n].step(Version({}, 0, cut=0))
        self.directory.delete(tp(n))

    def roll(self, n: int) -> None:
        self.log(n).roll()

    def begin_round(self) -> None:
        if self.round is None:
            logs = [self.log(n) for n in range(LOGS)]
            ends = [(n, len(self.models[n].versions) - 1, log.log_end) for n, log in enumerate(logs)]
            self.round = self.directory.syncer.begin_round(logs), ends

    def end_round(self) -> None:
        self.begin_round()
        assert self.round is not None
        (tasks, ends), self.round = self.round, None
        syncer = self.directory.syncer
        syncer.end_round(tasks, syncer.run_round(tasks), None)
        for n, at, end in ends:
            log, model = self.log(n), self.models[n]
            taken = min([v.cut for v in model.versions[at + 1 :]], default=end)
            assert log.durable_end >= min(end, taken)
            if all(v.cut > end for v in model.versions[at + 1 :]):
                model.reported(at, end)

    def failing_round(self, failures: int) -> None:
        """Syncs fail; nothing is reported, the process ends. What it leaves in the page cache is not on the disk."""
        self.end_round()
        for n in range(LOGS):
            self.append(n, 900, n)
            self.append(n, 2_000, n)
        self.begin_round()
        assert self.round is not None
        (tasks, _), self.round = self.round, None
        self.disk.sync_failures_left = failures
        before = [self.log(n).durable_end for n in range(LOGS)]
        syncer, failed, whole = self.directory.syncer, {}, None
        try:
            failed = syncer.run_round(tasks)
        except DiskFailed as error:
            whole = error
        finally:
            self.disk.sync_failures_left = 0
        syncer.end_round(tasks, failed, whole)
        for n in range(LOGS):
            log = self.log(n)
            assert (log.failed is None) == (whole is None and log not in failed)
            assert log.failed is None or log.durable_end == before[n]
            if log.failed is None:
                self.models[n].reported(len(self.models[n].versions) - 1, log.durable_end)

    def catch_up(self) -> None:
        if self.round is None and self.catching is None:
            self.directory._catch_up_now()

    def begin_catch_up(self) -> None:
        """In the background: logs are appended to, rolled, cut and deleted until it ends."""
        if self.catching is None:
            self.catching = self.directory.syncer.begin_catch_up()

    def end_catch_up(self) -> None:
        self.begin_catch_up()
        assert self.catching is not None
        (tasks, number), self.catching = self.catching, None
        syncer = self.directory.syncer
        complete = syncer.end_catch_up(tasks, syncer.run_catch_up(tasks), None)
        self.directory._write_checkpoint(number if complete else None)

    def remember_hw(self, n: int, share: float) -> None:
        self.directory.checkpoint_hw({tp(n): int(share * self.log(n).durable_end)})

    # -- crashes ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def crash_after(self, calls: int, *, after: bool) -> Iterator[None]:
        self.fs.left, self.fs.after = calls, after
        try:
            yield
        except Crash:
            self.crashed_inside = True
        finally:
            self.fs.left = None

    def crash(self, *, power: bool) -> None:
        self.round = self.catching = None
        if power:
            self.disk.power_cut()
            self.boot += 1
        else:
            self.disk._files.clear()
            self.disk._locks.clear()

    def recover(self) -> None:
        self.directory = self._open()

    def check(self) -> None:
        for n, model in enumerate(self.models):
            log = self.log(n)
            assert log.damaged is None, (log, self.directory.reports)
            assert model.explain(log) == ""
            assert log.epochs.entries == epochs_of(log)
            model.recovered(log)


def epochs_of(log: PartitionLog) -> list[tuple[int, int]]:
    entries: list[tuple[int, int]] = []
    for base, data in content(log):
        epoch = int.from_bytes(data[12:16], "big")
        if not entries or entries[-1][0] != epoch:
            entries.append((epoch, base))
    known = log.epochs.entries
    if known and (not entries or entries[0] != known[0]):       # the first epoch may begin below the log start
        assert known[0][1] <= log.log_start or not entries
        entries = [known[0], *[e for e in entries if e[0] != known[0][0]]]
    return entries


def run(seed: int, *, scatter: bool, lives: list[Life]) -> None:
    history = History(seed, scatter=scatter)
    for life in lives:
        for name, *args in life.operations[:-1]:
            getattr(history, name)(*args)
        if life.operations:
            with history.crash_after(life.in_last, after=life.after):
                name, *args = life.operations[-1]
                getattr(history, name)(*args)
        if life.failures and not history.crashed_inside:
            history.failing_round(life.failures)
        history.crash(power=life.power)
        history.crashed_inside = False
        with history.crash_after(life.in_recovery, after=life.after):
            history.recover()
        history.crash(power=life.power and history.crashed_inside)
        history.crashed_inside = False
        history.recover()
        history.check()
