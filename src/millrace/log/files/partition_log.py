"""One partition's log on this broker: batches in log files, and what they add up to.

In: batches of clients (`append`), of a leader (`append_replica`), cuts. Out: ranges of whole batches (`read`), offsets.
Promise: all batches of an append are checked before a byte is written, and nothing in memory moves before the bytes are
written, so a failed append leaves no trace. What is served was checked: by this process when it was written, or when it
is first read after a start [L10]. A range that was cut away is never served.

    log_start <= durable_end <= log_end

`durable_end` moves when a sync round ends (flush=group), or with `log_end` (flush=os); then `on_durable` is called.
`failed`: a write or sync went wrong, nothing of this log is trusted until a restart. `damaged`: the offset of a batch
that is not what was written; the owner leaves ISR and ELR first and then calls `reset_damaged`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from millrace import limits
from millrace.core.epochs import EpochCache
from millrace.core.producers import Producers
from millrace.core.retention import File
from millrace.errors import (
    CorruptBatch,
    DiskFailed,
    DiskFull,
    InvalidRequest,
    OffsetOutOfRange,
)
from millrace.log.files import by_time, mending, reading, starting
from millrace.log.files.adding import add_up, find_repeated, refuse_unless_following
from millrace.log.files.calls import disk_error, disk_errors, write_all
from millrace.log.files.formats import (
    APPEND,
    HEADER_BYTES,
    NO_DATA,
    RESTART,
    TRUNCATE,
    Entry,
    LogState,
    encode_base,
)
from millrace.log.files.home import ASIDE, Home
from millrace.log.files.log_file import LogFile, Place, find, walk
from millrace.log.files.making import create_file, cut_file, drop_file, save_index
from millrace.log.files.reading import Chunk
from millrace.model.ids import TopicPartition
from millrace.wire import records
from millrace.wire.records import BatchHeader

__all__ = ["Appended", "Chunk", "PartitionLog"]

STARTS_KEPT = 64       # batch starts remembered for readers that go on where they stopped


class Appended(NamedTuple):
    """`duplicate`: the producer repeated itself; this is where its batch already lies."""

    base: int
    end: int
    duplicate: bool = False


class PartitionLog:
    __slots__ = (
        "_direct", "_files", "_home", "_starts", "_state", "cuts", "damaged", "durable_end", "epochs", "failed",
        "front", "journaled", "log_end", "log_start", "named", "newest", "on_durable", "producers", "syncing_end", "tp",
    )

    def __init__(self, home: Home, tp: TopicPartition, state: LogState | None = None) -> None:
        self._home = home
        self.tp = tp
        self.log_start = state.log_start if state else 0
        self.log_end = self.durable_end = state.end if state else 0
        self.newest = state.newest if state else -1           # timestamp
        self.epochs = EpochCache(state.epochs if state else None)
        self.producers = Producers.restore(state.producers) if state and state.producers else Producers()
        self.front = state.front if state else b""            # what is known of producers before the first file
        self.damaged: int | None = None
        self.failed: DiskFailed | None = None
        self.on_durable: Callable[[PartitionLog, DiskFailed | None], None] | None = None
        self.cuts = 0                          # how often bytes were taken away: what began before counts no more
        self.syncing_end = 0                   # what the running sync round will have made durable
        self.named = state is not None         # the directory's name is on the disk
        self.journaled = 0                     # bytes in the journal since the last round began
        self._direct: list[LogFile] = []       # files with bytes since then that are nowhere else
        self._state = state                    # the last known synced state; None: none
        self._files: list[LogFile] | None = [] if state is None else None
        self._starts: dict[int, Place] = {}

    def __repr__(self) -> str:
        return f"<PartitionLog {self.tp} {self.log_start}..{self.log_end}>"

    @property
    def files(self) -> list[LogFile]:
        """Found on first use: an idle partition costs no descriptor and no listing."""
        if self._files is None:
            self._files = []
            mending.attach_files(self._home, self)
        return self._files

    def adopt(self, files: list[LogFile]) -> None:
        self._files = files

    @property
    def size_bytes(self) -> int:
        return sum(file.size - HEADER_BYTES for file in self.files)

    # -- appending ---------------------------------------------------------------------------------------------------

    def append(
        self,
        view: memoryview | bytearray | bytes,
        *,
        epoch: int,
        timestamp_ms: int | None = None,
        batch_bytes_max: int = limits.BATCH_BYTES_MAX,
    ) -> Appended:
        """A leader's append. `timestamp_ms` is for callers that stamp append time; batches keep their own times."""
        self._refuse_if_unfit()
        headers = records.parse_produced(view, batch_bytes_max=batch_bytes_max)
        if headers[0].producer_id >= 0 or len(headers) > 1:
            repeated = find_repeated(self.producers, headers)
            if repeated is not None:
                return Appended(*repeated, duplicate=True)
        if epoch < self.epochs.latest():
            raise InvalidRequest(f"append in epoch {epoch}, the log has {self.epochs.latest()}")
        if isinstance(view, bytes) or (isinstance(view, memoryview) and view.readonly):
            view = bytearray(view)
        offset = self.log_end
        for header in headers:
            records.stamp(view, header.position, base_offset=offset, leader_epoch=epoch)
            offset += header.last_offset_delta + 1
        base = self.log_end
        self._commit(view, headers, epoch)
        return Appended(base, self.log_end)

    def append_fence(self, writer_id: int, writer_epoch: int, *, epoch: int, timestamp_ms: int) -> Appended:
        """From here on lower epochs of this writer are refused; a repeat gives the first one's place [L28]."""
        self._refuse_if_unfit()
        offset = self.producers.check_fence(writer_id, writer_epoch)
        if offset is not None:
            return Appended(offset, offset + 1, duplicate=True)
        base = self.log_end
        batch = records.build_fence(
            writer_id, writer_epoch, timestamp_ms=timestamp_ms, base_offset=base, leader_epoch=epoch
        )
        self._commit(batch, records.parse_batches(batch), epoch)
        return Appended(base, self.log_end)

    def append_replica(self, view: memoryview | bytearray | bytes) -> int:
        """A follower's append: batches keep their stamps and must continue this log. The new log end."""
        self._refuse_if_unfit()
        headers = records.parse_batches(view)
        refuse_unless_following(headers, self.log_end, self.epochs.latest())
        self._commit(view, headers, None)
        return self.log_end

    def _refuse_if_unfit(self) -> None:
        if self.failed is not None:
            raise self.failed
        if self.damaged is not None:
            raise CorruptBatch(f"{self.tp} is damaged at offset {self.damaged}")

    def _commit(self, view: memoryview | bytearray | bytes, headers: list[BatchHeader], epoch: int | None) -> None:
        """One write, and only behind it everything else. `epoch` None: that of each batch."""
        home, size = self._home, len(view)
        file = self._file_for(size)
        position = file.size
        try:
            write_all(home.fs, home.fds.get(file), view, position)
        except OSError as error:
            self._write_failed(file, position, error)
        file.size = position + size
        add_up(self, view, headers, epoch, file, position)
        self._remember(self.log_end, Place(file, file.size))
        home.unsynced[self] = None
        if not home.grouped:
            self.durable_end = self.log_end
        elif (
            size <= home.sizes.journal_batch_bytes
            and self.journaled + size <= home.sizes.journal_round_bytes
            and home.journal.accepts
        ):
            self.journaled += size
            data = view if isinstance(view, memoryview) else memoryview(view)
            home.journal.add(Entry(APPEND, self.tp, file.generation, file.base, position, data))
        elif not self._direct or self._direct[-1] is not file:
            self._direct.append(file)

    def _remember(self, offset: int, place: Place) -> None:
        starts = self._starts
        starts[offset] = place
        if len(starts) > STARTS_KEPT:
            del starts[next(iter(starts))]

    def _write_failed(self, file: LogFile, position: int, error: OSError) -> None:
        """Take the torn bytes back; whatever the disk keeps of them, this file is not written to again."""
        file.sealed = True
        ours = disk_error(error, file.path)
        try:
            self._home.fs.truncate(self._home.fds.get(file), position)
        except OSError as again:
            self.failed = disk_error(again, file.path)
        if not isinstance(ours, DiskFull):
            self.failed = ours
        raise ours from error

    # -- files -------------------------------------------------------------------------------------------------------

    def _file_for(self, size: int) -> LogFile:
        files = self.files
        if files:
            file = files[-1]
            if not file.sealed and (file.size + size <= self._home.sizes.log_file_bytes or file.size == HEADER_BYTES):
                return file
        return self.roll()

    def roll(self) -> LogFile:
        """Go on in a new file."""
        files = self.files
        if files:
            last = files[-1]
            if last.size == HEADER_BYTES:
                drop_file(self._home, self.tp, files.pop())
            else:
                last.sealed = True
                self.save_index()
        file = create_file(self._home, self.tp, self.log_end)
        self.named = self.named and len(files) > 0
        files.append(file)
        self._home.unsynced[self] = None       # the next checkpoint must know this file
        self._remember(self.log_end, Place(file, HEADER_BYTES))
        return file

    def save_index(self) -> None:
        """The last file's, with the producers' state behind it."""
        if self.files:
            producers = self.producers.snapshot()
            save_index(self._home, self.tp, self.files[-1], next_offset=self.log_end, producers=producers)

    # -- cutting -----------------------------------------------------------------------------------------------------

    def truncate(self, to: int) -> int:
        """Cut everything from `to` on (and the batch that holds it). The new log end.

        The event is in the journal, durably, before a file changes: recovery never takes a cut for damage."""
        if to >= self.log_end:
            return self.log_end
        if to <= self.log_start:
            return self.restart_at(to, starting.producers_at(self._home, self, to))
        if self.failed is not None:
            raise self.failed
        at = self._file_index(to)
        file = self.files[at]
        header = find(self._home.fds, file, to)
        cut, position = header.base_offset, header.position
        whole = position == HEADER_BYTES
        if whole:
            self.tell_journal(TRUNCATE, cut)
        else:
            self.tell_journal(TRUNCATE, cut, position, encode_base(file.base))
        with disk_errors(file.path):
            self._cut_files(at, position, whole=whole)
        self._cut_to(cut)
        return cut

    def tell_journal(
        self, kind: int, offset: int, position: int = 0, data: memoryview = NO_DATA, *, sync: bool = False
    ) -> None:
        """`sync`: with flush=os too, for what the removal of a file must not overtake."""
        home = self._home
        entry = home.journal.add(Entry(kind, self.tp, home.next_generation(), offset, position, data))
        home.journal.flush(sync=sync or home.grouped, mine=entry)

    def _cut_files(self, at: int, position: int, *, whole: bool) -> None:
        files = self.files
        for file in files[at if whole else at + 1 :]:
            drop_file(self._home, self.tp, file)
        del files[at if whole else at + 1 :]
        if not whole:
            cut_file(self._home, files[-1], position)

    def _cut_to(self, end: int) -> None:
        """What was derived from the log follows the cut."""
        self.cuts += 1
        self._home.unsynced[self] = None       # the cut itself reaches the disk with the next lazy sync
        self._starts.clear()
        self._direct = [file for file in self._direct if not file.gone]
        self.log_end = end
        self._home.cut(self.tp, end)
        self.durable_end = min(self.durable_end, end)
        self.syncing_end = min(self.syncing_end, end)
        self.epochs.truncated(end)
        if not self.producers.truncated(end):
            self.producers = mending.rebuild_producers(self._home, self.files, end, self.front)
        if self._state is not None and self._state.end > end:
            self._state = self.state()

    def restart_at(self, offset: int, producers: bytes = b"") -> int:
        """Forget all batches and start at `offset`: a follower the leader's log has left behind. `producers`: their
        state there, which the batches to come do not tell [L28]."""
        state = starting.restored(producers)
        self.tell_journal(RESTART, offset, data=memoryview(producers))
        with disk_errors(self._home.folder(self.tp)):
            for file in self.files:
                drop_file(self._home, self.tp, file)
        self._files = []
        self.damaged = None
        self.epochs.entries.clear()
        self.producers, self.front = state, producers
        self.newest = -1
        self.log_start = offset
        self._cut_to(offset)
        self.durable_end = offset
        return offset

    def delete_before(self, offset: int) -> int:
        """The log starts at `offset`, never above what is durable; files wholly below go [L23]. The log start."""
        return starting.start_at(self._home, self, offset)

    def start_moved(self) -> None:
        self._starts = {o: p for o, p in self._starts.items() if o >= self.log_start and not p.file.gone}
        self._direct = [file for file in self._direct if not file.gone]

    def reset_damaged(self) -> int:
        """Go on from the last batch before the damage; the files from there on are kept aside. The new log end."""
        if self.damaged is None:
            return self.log_end
        offset, self.damaged = self.damaged, None
        home = self._home
        self.tell_journal(TRUNCATE, offset)
        aside = f"{home.path}/{ASIDE}/damaged-{home.folder(self.tp).rpartition('/')[2]}-{home.generation}"
        with disk_errors(aside):
            offset = mending.set_damage_aside(home, self, offset, aside)
        self._cut_to(offset)
        return offset

    def close(self, why: DiskFailed) -> None:
        """Deleted, or set aside: nobody appends, ranges are not served any more."""
        self.failed = why
        for file in self._files or ():
            file.gone, file.size = True, 0
            self._home.fds.close(file)

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upto: int) -> Chunk | None:
        """Whole batches from the one that holds `offset` on, none of them reaching past `upto`; at least one.

        None: nothing there yet. Consumers give the high watermark as `upto`, replicas the log end.
        """
        if offset >= upto or offset >= self.log_end:
            return None
        if offset < self.log_start:
            raise OffsetOutOfRange(f"{self.tp}: {offset} is below the log start {self.log_start}")
        try:
            return self._read(offset, max_bytes, min(upto, self.log_end))
        except CorruptBatch:
            self.damage_found(offset)
            raise

    def _read(self, offset: int, max_bytes: int, upto: int) -> Chunk | None:
        place, base = self._starts.get(offset), offset
        if place is None or place.position >= place.file.size:
            place, base = self._locate(offset)
        file, position = place
        end, following = self._end_of_read(file, position, max_bytes, upto)
        if following < 0:
            if file.is_cold(position, position + 1):       # is it really too far, or does its header only say so?
                self._check(file, position, min(file.size, position + limits.BATCH_BYTES_CEILING), base)
            return None
        data: bytes | None = None
        if file.cold is not None and file.is_cold(position, end):
            data, end, following = self._check(file, position, end, base)
        if end < file.size or file is self.files[-1]:
            self._remember(following, Place(file, end))
        return Chunk(self._home.fds, file, position, end - position, following, data)

    def _end_of_read(self, file: LogFile, position: int, max_bytes: int, upto: int) -> tuple[int, int]:
        if file.size - position <= max_bytes and upto == self.log_end and file is self.files[-1]:
            return file.size, upto
        bound = self._starts.get(upto)
        if bound is not None and bound.file is file and 0 < bound.position - position <= max_bytes:
            return bound.position, upto
        return reading.end_of(self._home, file, position, max_bytes=max_bytes, upto=upto)

    def _check(self, file: LogFile, position: int, end: int, base: int) -> tuple[bytes, int, int]:
        """First read since the start: nothing rotten is served [L10]."""
        data, good, following, bad = reading.check_cold(self._home, file, self.epochs, position, end, base)
        if bad is not None:
            self.damage_found(bad)
        if good == position:
            raise CorruptBatch(f"{self.tp} is damaged at offset {self.damaged} ({file.path} byte {good})")
        return data, good, following

    def damage_found(self, offset: int) -> None:
        if self.damaged is None or offset < self.damaged:
            self.damaged = offset

    def _locate(self, offset: int) -> tuple[Place, int]:
        """Where the batch that holds `offset` lies, and its base offset."""
        if self.damaged is not None and offset >= self.damaged:
            raise CorruptBatch(f"{self.tp} is damaged at offset {self.damaged}")
        file = self.files[self._file_index(offset)]
        position, base = reading.position_of(self._home, file, offset)
        return Place(file, position), base

    def _file_index(self, offset: int) -> int:
        files = self.files
        at = bisect_right(files, offset, key=lambda file: file.base) - 1
        if at < 0:
            raise OffsetOutOfRange(f"{self.tp}: {offset} is in no file")
        return at

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after the time, None when all are older."""
        return by_time.first(self._home, self, timestamp_ms)

    def newest_record(self, upto: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the newest record below `upto`, the first of several."""
        return by_time.newest(self._home, self, upto)

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        """Batch headers from the one that holds `offset` on; for tools and tests."""
        for file in self.files[self._file_index(offset) :] if offset < self.log_end else []:
            start, _ = reading.position_of(self._home, file, max(offset, file.base))
            yield from walk(self._home.fds, file, start, file.size, -1)

    def verify(self) -> int | None:
        """Read and check every batch now. The offset of the first that is damaged, None: all is as written."""
        for file in list(self.files):
            bad = reading.check_whole(self._home, file, self.epochs)
            if bad is not None:
                self.damage_found(bad)
                return bad
        return self.damaged

    # -- syncing: what the syncer asks -------------------------------------------------------------------------------

    def take_direct(self) -> list[LogFile]:
        """Files whose bytes are nowhere else, for the round that starts now."""
        files, self._direct = [file for file in self._direct if not file.gone], []
        self.journaled = 0
        self.syncing_end = self.log_end
        return files

    def round_ended(self, error: DiskFailed | None) -> None:
        if error is not None:
            self.failed = error
        elif self.failed is None:
            self.durable_end = max(self.durable_end, self.syncing_end)
        if self.on_durable is not None:
            self.on_durable(self, self.failed)

    def state(self) -> LogState:
        """What the log adds up to now; true on the disk once its files are synced."""
        files = self.files
        last = files[-1] if files else None
        producers = self.producers.snapshot() if self.producers.by_id else b""
        if last is None:
            place = (-1, 0, self._home.generation)
        else:
            place = (last.base, last.size, last.generation)
        epochs = list(self.epochs.entries)
        return LogState(self.log_start, self.log_end, *place, self.newest, epochs, producers, self.front)

    def state_synced(self, state: LogState) -> None:
        self._state = state

    @property
    def synced_state(self) -> LogState | None:
        return self._state

    @property
    def is_loaded(self) -> bool:
        return self._files is not None

    # -- the front: what retention and a follower left behind ask ----------------------------------------------------

    def file_views(self) -> list[File]:
        return starting.file_views(self._home, self)

    @property
    def has_one_file(self) -> bool:
        """Or none; known without looking at the disk, but for a file that begins where the log starts: one before it
        may have waited for a checkpoint when the broker was stopped."""
        last = self._state.file if self._state is not None else -1
        if self._files is None and (last != self.log_start or last == 0):
            return last <= self.log_start
        return len(self.files) <= 1

    def active_span_ms(self) -> tuple[int, int]:
        return starting.active_span_ms(self._home, self)

    def producers_for_restart(self, committed: int) -> bytes:
        return starting.producers_for_restart(self._home, self, committed)
