"""Sync rounds: one at a time in the executor, each for everything that gathered while the last one ran.

In: logs with appends somebody waits for (`request`), a call to make files catch up with the journal (`catch_up`).
Out: `durable_end` of each log moves in the loop, behind the round; a failed sync fails its log, for good [L10].
Promise: what a round reports was written before it began. A descriptor whose sync failed is never asked again.

    round      fdatasync(journal), and fdatasync of the files that got what is too large for it
    catch_up   fdatasync of every file with unsynced bytes and of directories with new names, then the checkpoint that
               says so, then the journals before it are dead
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from millrace.errors import DiskFailed, DiskFull, MillraceError
from millrace.limits import JOURNAL_AGAIN_S
from millrace.log.files.calls import disk_error, disk_errors
from millrace.log.files.formats import LogState
from millrace.log.files.home import LOGS, Home
from millrace.log.files.log_file import LogFile
from millrace.log.files.partition_log import PartitionLog
from millrace.ops.ports import FileSystem

INDEX_SAVED_EVERY_BYTES = 16 << 20


class _Task(NamedTuple):
    """The files of one log to sync, with their sizes now."""

    log: PartitionLog
    files: list[tuple[LogFile, int, int]]      # file, descriptor (-1: to be opened), size
    folder: str | None                          # names in it are to be synced as well
    state: LogState | None                      # what the log adds up to once this is done
    cuts: int


class Syncer:
    __slots__ = (
        "_catching_up", "_home", "_keep", "_lazy", "_rounds", "_running", "_scheduled", "_wanted", "_write", "rounds",
    )

    def __init__(
        self, home: Home, keep: Callable[[PartitionLog, LogState], None], write: Callable[[int | None], None]
    ) -> None:
        self._home = home
        self._keep = keep                  # notes a synced state for the next checkpoint
        self._write = write                # writes the checkpoint; journals below the number are dead then
        self._wanted: dict[PartitionLog, None] = {}
        self._scheduled = False
        self._running: asyncio.Future[dict[PartitionLog, DiskFailed]] | None = None
        self._catching_up: asyncio.Future[None] | None = None
        self._rounds = ThreadPoolExecutor(1, "sync")
        self._lazy = ThreadPoolExecutor(1, "catch-up")
        self.rounds = 0

    # -- rounds ------------------------------------------------------------------------------------------------------

    def request(self, log: PartitionLog) -> None:
        if log.failed is not None:
            return
        self._wanted[log] = None
        if not self._scheduled and self._running is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        if self._running is not None or not self._wanted:
            return
        wanted, self._wanted = self._wanted, {}
        if not self._home.grouped:             # flush=os: it is as durable as it gets
            for log in wanted:
                log.round_ended(None)
            return
        tasks = self.begin_round(wanted)
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._rounds, self.run_round, tasks)
        self._running = running
        running.add_done_callback(lambda done: self._round_done(tasks, done))

    def begin_round(self, logs: Iterable[PartitionLog]) -> list[_Task]:
        """In the loop: these logs as they are now."""
        return [self._round_task(log) for log in logs]

    def _round_task(self, log: PartitionLog) -> _Task:
        files = log.take_direct()
        folder = self._home.folder(log.tp) if any(not file.synced_bytes for file in files) else None
        return _Task(log, self._pin(files), folder, None, log.cuts)

    def _pin(self, files: list[LogFile], *, open_all: bool = True) -> list[tuple[LogFile, int, int]]:
        """Descriptors the executor may use. Without `open_all` only those that are open: there may be thousands."""
        pinned = []
        for file in files:
            if open_all or file.fd >= 0:
                self._home.fds.get(file)
            file.pins += 1
            pinned.append((file, file.fd, file.size))
        return pinned

    def run_round(self, tasks: list[_Task]) -> dict[PartitionLog, DiskFailed]:
        """In the executor. Which logs failed, and how."""
        failed: dict[PartitionLog, DiskFailed] = {}
        for task in tasks:
            if task.files:
                error = self._sync(task)
                if error is not None:
                    failed[task.log] = error
        if any(task.folder and not task.log.named for task in tasks):
            self._sync_names()
        if self._home.journal.waiting or self._home.journal.failed:
            self._home.journal.flush()
        return failed

    def _sync(self, task: _Task) -> DiskFailed | None:
        fs = self._home.fs
        try:
            for file, fd, _ in task.files:
                if fd >= 0:
                    fs.sync(fd)
                else:
                    _sync_path(fs, file)
            if task.folder is not None and fs.exists(task.folder):
                fs.sync_dir(task.folder)
        except OSError as error:
            return disk_error(error, f"sync of {task.log.tp}")
        return None

    def _round_done(self, tasks: list[_Task], done: asyncio.Future[dict[PartitionLog, DiskFailed]]) -> None:
        self._running = None
        failed, whole = _outcome(done)
        if isinstance(whole, DiskFull) and self._home.journal.failed is None:
            self._put_off(tasks)
            return
        self.end_round(tasks, failed, whole)
        if self._home.journal.wants_trim and self._catching_up is None and whole is None:
            self.catch_up()

    def _put_off(self, tasks: list[_Task]) -> None:
        """The journal has no room: nothing became durable, and nothing is lost. Tried again until there is some; who
        waits for an acknowledgement waits on, or gives up."""
        for task in tasks:
            self._settle(task, None)           # its own files were synced before the journal was tried
            self._wanted[task.log] = None
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(JOURNAL_AGAIN_S, self._start)

    def end_round(self, tasks: list[_Task], failed: dict[PartitionLog, DiskFailed], whole: DiskFailed | None) -> None:
        """In the loop: each log learns what is durable now; the next round starts before anybody is told."""
        self.rounds += 1
        for task in tasks:
            error = failed.get(task.log, whole)
            if task.files:
                self._settle(task, error)
            if task.folder is not None and error is None:
                task.log.named = True
        if self._wanted:
            self._start()
        for task in tasks:
            task.log.round_ended(failed.get(task.log, whole))

    def _settle(self, task: _Task, error: DiskFailed | None) -> None:
        for file, _, size in task.files:
            self._home.fds.unpin(file)
            if error is None and not file.gone:
                file.synced_bytes = max(file.synced_bytes, min(size, file.size))

    # -- catching up -------------------------------------------------------------------------------------------------

    def catch_up(self) -> asyncio.Future[None]:
        """Files, then the checkpoint, then older journals are dead. One at a time; a second call joins the first."""
        if self._catching_up is not None:
            return self._catching_up
        tasks, number = self.begin_catch_up()
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._lazy, self.run_catch_up, tasks)
        finished: asyncio.Future[None] = loop.create_future()
        self._catching_up = finished
        running.add_done_callback(lambda done: self._caught_up(tasks, number, done))
        return finished

    def begin_catch_up(self) -> tuple[list[_Task], int | None]:
        """In the loop: everything unsynced now. The number below which journals will be dead, None: none will."""
        home = self._home
        number = home.journal.switch()
        unsynced, home.unsynced = home.unsynced, {}
        return [self._lazy_task(log) for log in unsynced], number

    def _lazy_task(self, log: PartitionLog) -> _Task:
        files = [file for file in log.files if file.synced_bytes < file.size]
        last = log.files[-1] if log.files else None
        if last is not None and last.synced_bytes + INDEX_SAVED_EVERY_BYTES < last.size:
            log.save_index()
        return _Task(log, self._pin(files, open_all=False), self._home.folder(log.tp), log.state(), log.cuts)

    def run_catch_up(self, tasks: list[_Task]) -> dict[PartitionLog, DiskFailed]:
        failed: dict[PartitionLog, DiskFailed] = {}
        for task in tasks:
            error = self._sync(task)
            if error is not None:
                failed[task.log] = error
        home = self._home
        if home.renamed or any(not task.log.named for task in tasks):
            self._sync_names()
            home.renamed = False
        return failed

    def _sync_names(self) -> None:
        folder = f"{self._home.path}/{LOGS}"
        with disk_errors(folder):
            self._home.fs.sync_dir(folder)

    def _caught_up(
        self, tasks: list[_Task], number: int | None, done: asyncio.Future[dict[PartitionLog, DiskFailed]]
    ) -> None:
        failed, whole = _outcome(done)
        dead = number if self.end_catch_up(tasks, failed, whole) else None
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._lazy, self._write, dead).add_done_callback(self._checkpointed)

    def end_catch_up(
        self, tasks: list[_Task], failed: dict[PartitionLog, DiskFailed], whole: DiskFailed | None
    ) -> bool:
        """In the loop: what is synced now is where recovery starts. True: every log has such a state."""
        complete = whole is None
        for task in tasks:
            log, error = task.log, failed.get(task.log, whole)
            self._settle(task, error)
            if error is not None:
                log.round_ended(error)
                complete = False
            elif log.cuts != task.cuts:
                complete = False           # cut meanwhile: the next one has its state
            elif log.damaged is None and task.state is not None:
                log.named = True
                log.state_synced(task.state)
                self._keep(log, task.state)
        return complete

    def _checkpointed(self, done: asyncio.Future[None]) -> None:
        finished, self._catching_up = self._catching_up, None
        error = done.exception()
        if finished is not None and not finished.done():
            if error is None:
                finished.set_result(None)
            else:
                finished.set_exception(_ours(error))
                finished.exception()       # whoever waits gets it; nobody must

    def checkpoint(self) -> None:
        """Write what is known, in the background."""
        if self._catching_up is None:
            loop = asyncio.get_running_loop()
            self._catching_up = loop.create_future()
            loop.run_in_executor(self._lazy, self._write, None).add_done_callback(self._checkpointed)

    def background(self, work: Callable[[], None]) -> None:
        """Clean-up that nobody waits for; what it leaves undone the next start does."""
        asyncio.get_running_loop().run_in_executor(self._lazy, work).add_done_callback(_forgive)

    async def drain(self) -> None:
        """Until nothing is under way."""
        while self._running is not None or self._scheduled or self._catching_up is not None:
            waiting = [f for f in (self._running, self._catching_up) if f is not None]
            if waiting:
                await asyncio.wait(waiting)
            await asyncio.sleep(0)

    def close(self) -> None:
        self._rounds.shutdown(wait=True)
        self._lazy.shutdown(wait=True)


def _sync_path(fs: FileSystem, file: LogFile) -> None:
    """A descriptor of its own: Linux tells it of a failed write that nobody was told of before."""
    try:
        fd = fs.open(file.path)
    except FileNotFoundError:
        if not file.gone:
            raise
        return
    try:
        fs.sync(fd)
    finally:
        fs.close(fd)


def _forgive(done: asyncio.Future[None]) -> None:
    error = done.exception()
    if error is not None and not isinstance(error, OSError):
        raise error


def _outcome(
    done: asyncio.Future[dict[PartitionLog, DiskFailed]],
) -> tuple[dict[PartitionLog, DiskFailed], DiskFailed | None]:
    error = done.exception()
    return (done.result(), None) if error is None else ({}, _ours(error))


def _ours(error: BaseException) -> DiskFailed:
    if isinstance(error, DiskFailed):
        return error
    if isinstance(error, OSError):
        return disk_error(error, "sync")
    if isinstance(error, MillraceError):
        return DiskFailed(str(error))
    raise error
