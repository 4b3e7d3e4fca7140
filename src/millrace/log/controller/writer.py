"""One writer at a time: decide on the replayed state, append under the token, replay, reply.

In: decisions to make, as functions of the present state. Out: their replies, once their records are durable and
replayed. Promises: a decision is made on a state that holds every record written before it; decisions that touch
different partitions and say they stand alone share one append (a sync each would be slow); a decision larger than one
append goes in chunks, in its own order, with nothing in between. Any failed append ends the reign: whether it
happened is for the next one to read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from millrace import limits
from millrace.core.cluster import ClusterState
from millrace.core.decision import Decision
from millrace.errors import Deposed, DiskFull, MillraceError, NotController
from millrace.log.controller.codec import encode_record, encode_snapshot
from millrace.log.controller.history import History
from millrace.log.controller.stats import ControllerStats
from millrace.model.ids import BrokerId, TopicPartition
from millrace.model.records import BrokerDraining, ControllerRecord, PartitionChanged
from millrace.ops.ports import Ports
from millrace.store.contract import Store

log = structlog.get_logger(__name__)

OFFICE = "controller"
R = TypeVar("R")


@dataclass(slots=True)
class Pending:
    decide: Callable[[], Decision[Any]]
    done: asyncio.Future[Any]
    independent: bool        # looks only at the partitions it changes, and at brokers


class Batch:
    """Decisions that go into one append."""

    def __init__(self) -> None:
        self.records: list[ControllerRecord] = []
        self.replies: list[tuple[Pending, object]] = []
        self._touched: set[TopicPartition] = set()

    def overlaps(self, decision: Decision[Any]) -> bool:
        return not self._touched.isdisjoint(_touches(decision))

    def add(self, pending: Pending, decision: Decision[Any]) -> None:
        self.records += decision.records
        self.replies.append((pending, decision.reply))
        self._touched.update(_touches(decision))


def _touches(decision: Decision[Any]) -> list[TopicPartition]:
    return [TopicPartition(r.topic_id, r.partition) for r in decision.records if isinstance(r, PartitionChanged)]


class Writer:
    def __init__(
        self, store: Store, ports: Ports, token: int, state: ClusterState, history: History, stats: ControllerStats,
        *, snapshot_every_records: int, snapshot_index: int,
    ) -> None:
        self._store, self._ports, self._token, self._stats = store, ports, token, stats
        self.state = state
        self.history = history
        self._snapshot_every = snapshot_every_records
        self._snapshot_index = snapshot_index
        self._queue: deque[Pending] = deque()
        self._wake = asyncio.Event()
        self._ended = False

    async def submit(self, decide: Callable[[], Decision[R]], *, independent: bool = False) -> R:
        """The reply, when its records are durable and replayed; or what `decide` raised; or NotController."""
        if self._ended:
            raise NotController("no longer the controller")
        pending = Pending(decide, asyncio.get_running_loop().create_future(), independent)
        self._queue.append(pending)
        self._wake.set()
        reply: R = await pending.done
        return reply

    async def run(self) -> None:
        """Until an append fails (raised) or the task is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._write_next()

    def end(self) -> None:
        """The office is lost: whoever still waits must ask the next controller."""
        self._ended = True
        for pending in self._queue:
            _fail(pending, NotController("the controller stepped down; ask again"))
        self._queue.clear()
        self.history.wake()

    async def _write_next(self) -> None:
        batch = self._next_batch()
        if not batch.records:
            return
        try:
            await self._append(batch.records)
        except (Exception, asyncio.CancelledError) as error:
            # Written or not, we cannot say: the caller asks again and the next controller answers from what stands. A
            # store without room wrote nothing, and would tell the next one the same.
            for pending, _ in batch.replies:
                asks_again = NotController("the controller lost its office while it wrote; ask again")
                _fail(pending, error if isinstance(error, DiskFull) else asks_again)
            raise
        for pending, reply in batch.replies:
            if not pending.done.done():
                pending.done.set_result(reply)
        if self.state.index - self._snapshot_index >= self._snapshot_every:
            await self._save_snapshot()

    def _next_batch(self) -> Batch:
        batch = Batch()
        while self._queue:
            head = self._queue[0]
            if batch.records and not head.independent:
                break
            decision = self._decide(head)
            if decision is not None and batch.overlaps(decision):
                break
            self._queue.popleft()
            if decision is not None:
                batch.add(head, decision)
                if not head.independent or len(batch.records) >= limits.RECORDS_PER_APPEND_MAX:
                    break
        return batch

    def _decide(self, pending: Pending) -> Decision[Any] | None:
        """None: answered already, with nothing to write."""
        if pending.done.done():
            return None
        try:
            decision = pending.decide()
        except Exception as error:
            if not isinstance(error, MillraceError):
                log.exception("a decision failed")
            _fail(pending, error)
            return None
        if decision.records:
            return decision
        pending.done.set_result(decision.reply)
        return None

    async def _append(self, records: list[ControllerRecord]) -> None:
        for chunk, encoded in _chunks(records):
            self._ports.buggify("controller_before_append")
            started = self._ports.clock.now()
            expected = self.state.index
            last = await self._store.append(OFFICE, self._token, expected, encoded)
            self._stats.appends += 1
            self._stats.append_max_s = max(self._stats.append_max_s, self._ports.clock.now() - started)
            assert last == expected + len(chunk), "the store counts records as we do"
            self._ports.buggify("controller_after_append")
            self._replay(expected, chunk)

    def _replay(self, index: int, records: list[ControllerRecord]) -> None:
        stopping = {record.broker for record in records if isinstance(record, BrokerDraining)}
        for record in records:
            index += 1
            before, draining = None, False
            if isinstance(record, PartitionChanged):
                before = self.state.partition(TopicPartition(record.topic_id, record.partition))
                draining = before is not None and self._is_draining(before.leader, stopping)
            self.state.replay(index, record)
            self._stats.replayed(before, record, draining=draining)
        self.history.extend(records)

    def _is_draining(self, broker: BrokerId, stopping: set[BrokerId]) -> bool:
        known = self.state.brokers.get(broker)
        return broker in stopping or (known is not None and known.draining)

    async def _save_snapshot(self) -> None:
        """Replay at the next take-over stays short. Brokers a little behind still get plain records."""
        index = self.state.index
        self._snapshot_index = index     # a failed one is not tried again at once: the records still stand
        try:
            await self._store.save_snapshot(OFFICE, self._token, index, encode_snapshot(self.state.to_records()))
        except Deposed:
            raise
        except MillraceError as error:
            log.error("metadata snapshot not saved", index=index, error=str(error), code=error.code)
            return
        self._stats.snapshots += 1
        self.history.trim(self._snapshot_every)


def _chunks(records: list[ControllerRecord]) -> Iterator[tuple[list[ControllerRecord], list[bytes]]]:
    """Runs of records, in order, that a store takes in one append."""
    chunk: list[ControllerRecord] = []
    encoded: list[bytes] = []
    size_bytes = 0
    for record in records:
        data = encode_record(record)
        if len(chunk) == limits.RECORDS_PER_APPEND_MAX or size_bytes + len(data) > limits.STORE_APPEND_BYTES_MAX:
            yield chunk, encoded
            chunk, encoded, size_bytes = [], [], 0
        chunk.append(record)
        encoded.append(data)
        size_bytes += len(data)
    if chunk:
        yield chunk, encoded


def _fail(pending: Pending, error: Exception) -> None:
    if not pending.done.done():
        pending.done.set_exception(error)
