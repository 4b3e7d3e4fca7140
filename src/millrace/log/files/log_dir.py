"""A broker's data directory: who it belongs to, the logs in it, and that all of it comes back after a crash.

In: a path and the FileSystem port. Out: PartitionLogs, sync rounds, stored high watermarks.
Promise: a directory of another broker or cluster, of a newer format, or one in use is refused with one line and nothing
in it is changed. After a crash everything reported durable is there (flush=group); what is damaged says so [L10, L19].

    meta.json     format, cluster, broker, directory id       written once
    run.json      how often it was opened, boot id, flush mode, clean or not
    lock          held while open
    checkpoint    per partition the state its synced files add up to, and its high watermark
    journal/      small appends and cuts since then
    logs/<topic id>-<partition>/<base offset>.log, .index     nothing before the first append
    aside/        what is kept but not served: unknown partitions, damaged files
    trash/        deleted, going
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import msgspec
import structlog

from millrace.errors import ConfigError, DiskFailed, ForeignDirectory
from millrace.log.files import recovery
from millrace.log.files.calls import disk_errors, read_file, replace_file
from millrace.log.files.formats import (
    DELETE,
    Checkpoint,
    Entry,
    LogState,
    decode_checkpoint,
    decode_state,
    dir_name,
    encode_checkpoint,
    encode_state,
    key_of,
    parse_dir_name,
    refuse_newer,
    tp_of,
)
from millrace.log.files.home import ASIDE, JOURNAL, LOGS, TRASH, Home, Sizes
from millrace.log.files.journal import Journal, read_journals
from millrace.log.files.log_file import Fds
from millrace.log.files.partition_log import PartitionLog
from millrace.log.files.recovery import Report
from millrace.log.files.scrub import scrub
from millrace.log.files.syncer import Syncer
from millrace.model.ids import TopicPartition
from millrace.ops.ports import FileSystem

logger = structlog.get_logger(__name__)

FORMAT = 1
META, RUN, LOCK, CHECKPOINT = "meta.json", "run.json", "lock", "checkpoint"
CATCH_UP_EVERY_CHECKPOINTS = 6     # files catch up with the journal this often even when it stays small


class Meta(msgspec.Struct, frozen=True):
    format: int
    cluster_id: UUID
    broker_id: int
    directory_id: UUID


class Run(msgspec.Struct, frozen=True):
    """`boot_id` and `flush` are those of the last run whose traces are not recovered yet."""

    format: int = FORMAT
    opens: int = 0
    boot_id: str = ""
    flush: str = "group"
    clean: bool = True


class LogDir:
    def __init__(self, home: Home, meta: Meta, last: Run, lock: int, *, is_new: bool, same_boot: bool) -> None:
        self._home = home
        self._meta = meta
        self._lock = lock
        self._last = last
        self._run = last                       # replaced once recovery is done
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._states: dict[bytes, bytes] = {}
        self._journal_from = 0
        self._checkpoints = 0
        self._same_boot = same_boot
        self.path = home.path
        self.directory_id = meta.directory_id
        self.is_new = is_new
        self.clean_marker = last.clean
        self.reports: list[Report] = []        # what recovery found worth telling
        self.syncer = Syncer(home, self._keep, self._write_checkpoint)

    # -- opening -----------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str,
        fs: FileSystem,
        *,
        cluster_id: UUID,
        broker_id: int,
        flush: str = "group",
        boot_id: str = "",
        new_id: UUID | None = None,
        sizes: Sizes | None = None,
    ) -> LogDir:
        """`new_id` becomes the id of a directory that has none yet; `boot_id` tells a restart of the machine."""
        assert flush in ("group", "os"), flush
        with disk_errors(f"data directory {path}"):
            meta = _read_meta(fs, path, cluster_id=cluster_id, broker_id=broker_id)
            last = _read_run(fs, path)
            fs.makedirs(path)
            lock = _lock(fs, path)
            try:
                is_new = meta is None
                if meta is None:
                    meta = _create(fs, path, Meta(FORMAT, cluster_id, broker_id, new_id or uuid4()))
                boot = boot_id.partition(":")[0]
                run = Run(opens=last.opens + 1, boot_id=last.boot_id, flush=last.flush, clean=False)
                _write_json(fs, path, RUN, run)
                home = _home(fs, path, meta, run.opens, grouped=flush == "group", sizes=sizes or Sizes())
                self = cls(home, meta, last, lock, is_new=is_new, same_boot=bool(boot) and boot == last.boot_id)
                self._load()
                self._run = Run(opens=run.opens, boot_id=boot, flush=flush, clean=False)
                _write_json(fs, path, RUN, self._run)
            except BaseException:
                fs.close(lock)
                raise
        return self

    @property
    def clean_stop(self) -> bool:
        """Nothing that was written can be missing: a clean marker, or the machine has been up since [L8]."""
        return self.clean_marker or self._same_boot

    def _load(self) -> None:
        home = self._home
        path = f"{home.path}/{CHECKPOINT}"
        data = read_file(home.fs, path)
        found = decode_checkpoint(data, path) if data else None
        if data and found is None:
            logger.error("the checkpoint cannot be read: every log is scanned from its start", path=path)
        checkpoint = found or Checkpoint()
        entries, following = read_journals(
            home.fs, f"{home.path}/{JOURNAL}", self._meta.directory_id, keep_from=checkpoint.journal_from
        )
        home.journal.number = home.journal.keep_from = max(home.journal.number, following)
        self._states, home.hws = checkpoint.logs, checkpoint.hws
        self._journal_from = checkpoint.journal_from
        if entries or not self._last.clean or (data and found is None):
            self._recover(entries, any_start=bool(data) and found is None)
        for name in home.fs.listdir(f"{home.path}/{TRASH}"):
            home.fs.remove_tree(f"{home.path}/{TRASH}/{name}")

    def _recover(self, entries: list[Entry], *, any_start: bool) -> None:
        """Every log before the directory is open: what was redone and cut is synced, then the journals are dead."""
        events: dict[TopicPartition, list[Entry]] = {tp: [] for tp in [*self.stored(), *map(tp_of, self._states)]}
        for entry in entries:
            events.setdefault(entry.tp, []).append(entry)
        for gone in self._taken_away():
            state = self._state(gone.tp)
            if state is None and gone.tp not in events:
                continue
            if state is None or state.generation < gone.generation:
                _insert(events.setdefault(gone.tp, []), gone)
        hw_synced = self._last.flush == "group" or self._same_boot or self._last.clean
        for tp, of_log in events.items():
            state = self._state(tp)
            hw = self._home.hws.get(key_of(tp), 0) if hw_synced else 0
            recovered = PartitionLog(self._home, tp)
            report = recovery.recover(
                self._home, recovered, of_log, state=state, floor=max(hw, state.end if state else 0),
                same_boot=self._same_boot, any_start=any_start,
            )
            folder = self._home.folder(tp)
            if not recovered.files and recovered.damaged is None and self._home.fs.exists(folder):
                self._home.fs.remove_tree(folder)      # redone and deleted again: no files, no directory
                self._home.renamed = True
            self._logs[tp] = recovered
            self._tell(report)
        for key, hw in self._home.hws.items():
            known = self._logs.get(tp_of(key))
            if known is not None and known.damaged is None:
                self._home.hws[key] = min(hw, known.log_end)
        self._catch_up_now()

    def _taken_away(self) -> list[Entry]:
        """Partitions whose directory was renamed away; a crash may have come before the journal knew."""
        found: list[Entry] = []
        for folder in (TRASH, ASIDE):
            for name in self._home.fs.listdir(f"{self.path}/{folder}"):
                stem, _, generation = name.rpartition("-")
                tp = parse_dir_name(stem)
                if tp is not None:
                    found.append(Entry(DELETE, tp, int(generation), 0))
        return found

    def _tell(self, report: Report) -> None:
        if report.damaged is not None:
            logger.error(
                "damaged log", partition=str(report.tp), offset=report.damaged, why=report.why,
                remedy="the replica leaves the ISR and fetches again from there",
            )
        elif report.cut_bytes:
            logger.warning("torn tail cut", partition=str(report.tp), end=report.end, cut_bytes=report.cut_bytes)
        if report.damaged is not None or report.cut_bytes or report.redone:
            self.reports.append(report)

    # -- logs --------------------------------------------------------------------------------------------------------

    def partition(self, tp: TopicPartition) -> PartitionLog:
        """The log, opened or new; no file is made or touched before it is used."""
        found = self._logs.get(tp)
        if found is None:
            found = self._logs[tp] = PartitionLog(self._home, tp, self._state(tp))
        return found

    def _state(self, tp: TopicPartition) -> LogState | None:
        data = self._states.get(key_of(tp))
        return decode_state(data) if data is not None else None

    def stored(self) -> list[TopicPartition]:
        """What is on the disk."""
        names = self._home.fs.listdir(f"{self.path}/{LOGS}")
        return [tp for tp in map(parse_dir_name, names) if tp is not None]

    def delete(self, tp: TopicPartition) -> None:
        """Gone at once for everyone; its bytes go in the background. A crash before the next sync may bring it back."""
        home = self._home
        generation = home.next_generation()
        target = f"{self.path}/{TRASH}/{dir_name(tp)}-{generation}"
        with disk_errors(target):
            there = self._forget(tp, target)
        home.journal.add(Entry(DELETE, tp, generation, 0))

        def remove() -> None:                          # the name in the trash is the evidence until the journal has it
            if there:
                for name in home.fs.listdir(target):
                    home.fs.unlink(f"{target}/{name}")  # a full disk gets its room first
            home.journal.flush(sync=home.grouped)
            if there:
                home.fs.remove_tree(target)

        home.renamed = True
        try:
            self.syncer.background(remove)
        except RuntimeError:                           # no loop runs: a tool, or a test
            remove()

    def set_aside(self, tp: TopicPartition) -> str:
        """Kept, not served, not deleted [L19]. Where it is now."""
        home = self._home
        generation = home.next_generation()
        target = f"{self.path}/{ASIDE}/{dir_name(tp)}-{generation}"
        with disk_errors(target):
            if self._forget(tp, target):
                home.fs.sync_dir(f"{self.path}/{ASIDE}")
                home.fs.sync_dir(f"{self.path}/{LOGS}")
        home.journal.add(Entry(DELETE, tp, generation, 0))
        home.journal.flush(sync=home.grouped)
        return target

    def _forget(self, tp: TopicPartition, target: str) -> bool:
        home = self._home
        gone = self._logs.pop(tp, None)
        if gone is not None:
            gone.on_durable = None
            gone.close(DiskFailed(f"{tp} was deleted"))
            home.unsynced.pop(gone, None)
        self._states.pop(key_of(tp), None)
        home.hws.pop(key_of(tp), None)
        there = home.fs.exists(home.folder(tp))
        if there:
            home.fs.rename(home.folder(tp), target)
        return there

    # -- durability --------------------------------------------------------------------------------------------------

    def request_sync(self, log: PartitionLog) -> None:
        """`log.on_durable` is called when what it holds now is durable, or cannot be."""
        self.syncer.request(log)

    def checkpoint_hw(self, hws: Mapping[TopicPartition, int]) -> None:
        """Remember high watermarks; written in the background while a loop runs."""
        for tp, hw in hws.items():
            self._home.hws[key_of(tp)] = hw
            known = self._logs.get(tp)
            if known is not None:
                known.producers.settled(hw)
        self._checkpoints += 1
        try:
            if self._home.unsynced and self._checkpoints % CATCH_UP_EVERY_CHECKPOINTS == 0:
                self.syncer.catch_up()
            else:
                self.syncer.checkpoint()
        except RuntimeError:                           # no loop runs
            self._write_checkpoint(None)

    def stored_hw(self, tp: TopicPartition) -> int:
        return self._home.hws.get(key_of(tp), 0)

    def _keep(self, log: PartitionLog, state: LogState) -> None:
        if self._logs.get(log.tp) is log:
            self._states[key_of(log.tp)] = encode_state(state)

    def _write_checkpoint(self, dead_below: int | None) -> None:
        """In any thread, one at a time."""
        keep_from = self._journal_from if dead_below is None else dead_below
        checkpoint = Checkpoint(keep_from, dict(self._states), dict(self._home.hws))
        with disk_errors("checkpoint"):
            replace_file(self._home.fs, self.path, CHECKPOINT, encode_checkpoint(checkpoint))
        self._journal_from = keep_from
        self._home.journal.trimmed(keep_from)

    def _catch_up_now(self) -> None:
        """Files, checkpoint, journals: without a loop, at start and at the end."""
        tasks, number = self.syncer.begin_catch_up()
        failed = self.syncer.run_catch_up(tasks)
        complete = self.syncer.end_catch_up(tasks, failed, None)
        if not complete:
            raise next(iter(failed.values()), DiskFailed("logs changed while they were saved"))
        self._write_checkpoint(number)

    def usage(self) -> tuple[int, int]:
        """(free, total) bytes of the disk."""
        with disk_errors(self.path):
            return self._home.fs.usage(self.path)

    async def scrub(self, log: PartitionLog) -> int | None:
        """Check every batch of a log, off the loop. The offset of the first damage."""
        return await scrub(self._home.fs, log)

    def measures(self) -> dict[str, int]:
        home = self._home
        return {
            "open_files": len(home.fds), "journal_bytes": home.journal.used_bytes, "sync_rounds": self.syncer.rounds,
            "unsynced_logs": len(home.unsynced),
        }

    # -- closing -----------------------------------------------------------------------------------------------------

    async def close(self, clean: bool = True) -> None:
        """With `clean` everything is on the disk and the marker says so; else as it is."""
        await self.syncer.drain()
        self.close_now(clean=clean and all(known.failed is None for known in self._logs.values()))

    def close_now(self, *, clean: bool) -> None:
        home = self._home
        self.syncer.close()
        try:
            if clean:
                with disk_errors(self.path):
                    for log in list(home.unsynced):
                        log.save_index()
                    self._catch_up_now()
                    _write_json(home.fs, self.path, RUN, msgspec.structs.replace(self._run, clean=True))
        finally:
            home.fds.close_all()
            home.journal.close()
            home.fs.close(self._lock)


def _insert(events: list[Entry], gone: Entry) -> None:
    """Behind everything of the log that was taken away, before the first event of one that came after it."""
    at = next((n for n, event in enumerate(events) if event.generation > gone.generation), len(events))
    events.insert(at, gone)


def _home(fs: FileSystem, path: str, meta: Meta, opens: int, *, grouped: bool, sizes: Sizes) -> Home:
    """Generations and journal numbers of one opening lie above those of all before it."""
    first = opens << 32
    journal = Journal(
        fs, f"{path}/{JOURNAL}", meta.directory_id, first_number=first, file_bytes=sizes.journal_file_bytes
    )
    return Home(fs, path, Fds(fs, sizes.fds), journal, grouped, sizes, first)


def _read_meta(fs: FileSystem, path: str, *, cluster_id: UUID, broker_id: int) -> Meta | None:
    raw = _read_json(fs, path, META)
    if raw is None:
        if fs.exists(f"{path}/{LOGS}") and fs.listdir(f"{path}/{LOGS}"):
            raise ForeignDirectory(f"data directory {path} has logs but no {META}: name another, or restore the file")
        return None
    meta = msgspec.convert(raw, Meta)
    if meta.cluster_id != cluster_id:
        raise ForeignDirectory(f"data directory {path} belongs to cluster {meta.cluster_id}, not {cluster_id}")
    if meta.broker_id != broker_id:
        raise ForeignDirectory(f"data directory {path} belongs to broker {meta.broker_id}, not {broker_id}")
    return meta


def _read_run(fs: FileSystem, path: str) -> Run:
    raw = _read_json(fs, path, RUN)
    return msgspec.convert(raw, Run) if raw is not None else Run()


def _read_json(fs: FileSystem, path: str, name: str) -> dict[str, Any] | None:
    data = read_file(fs, f"{path}/{name}")
    if not data:
        return None
    try:
        raw = msgspec.json.decode(data, type=dict[str, Any])
        refuse_newer(int(raw.get("format", 0)), FORMAT, f"{path}/{name}")
    except (msgspec.MsgspecError, ValueError) as error:
        raise ForeignDirectory(f"{path}/{name} cannot be read: {error}") from error
    return raw


def _write_json(fs: FileSystem, path: str, name: str, value: Meta | Run) -> None:
    replace_file(fs, path, name, msgspec.json.encode(value))


def _lock(fs: FileSystem, path: str) -> int:
    try:
        return fs.lock(f"{path}/{LOCK}")
    except BlockingIOError as error:
        raise ConfigError(f"data directory {path} is in use by another process: stop it, or name another") from error


def _create(fs: FileSystem, path: str, meta: Meta) -> Meta:
    """The meta file last: a directory without it is still new."""
    for name in (LOGS, ASIDE, TRASH, JOURNAL):
        fs.makedirs(f"{path}/{name}")
    fs.sync_dir(path)
    fs.sync_dir(path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else "."))
    _write_json(fs, path, META, meta)
    return meta
