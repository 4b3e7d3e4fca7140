"""One source partition's rows to their targets: the machine `core.delivery.writing` between a reader and the log.

    portions of rows ─▶ pieces ─▶ Writing ─sends─▶ OnceWriter of the target ─answers─▶ Writing ─▶ WriteResult

In: the plan, already claimed. Out: the result. Promise: what the machine promises; reading stops while
`WORK_PENDING_BYTES_MAX` of encoded bytes are not delivered. After a refusal the next try waits a little: whoever has
refused is probably electing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple
from uuid import UUID

from millrace import limits
from millrace.core.delivery.pieces import Send
from millrace.core.delivery.writing import POISON, Piece, Writing
from millrace.errors import MillraceError, Unreachable
from millrace.log.client import LogClient
from millrace.log.client.answers import Backoff
from millrace.log.client.frames import Chunk, build_batch
from millrace.log.client.once import OnceWriter
from millrace.model.ids import TopicPartition
from millrace.model.quarantine import Quarantined, encode_quarantined
from millrace.model.table_plans import TablePlan
from millrace.model.writes import WritePlan, WriteResult
from millrace.ops.real import RealRandom
from millrace.pipeline.kafka.pieces import Maker, Points
from millrace.pipeline.kafka.portions import Portion
from millrace.sink.kafka.headers import NAME, value_of
from millrace.wire.batches_out import sealed
from millrace.wire.changes import encode_rows
from millrace.wire.records import Record


class Job(NamedTuple):
    """`maker_of`: of a version of the table, and the id of the topic that its rows go to."""

    plan: WritePlan
    portions: AsyncIterator[Portion]
    names: Mapping[UUID, str]                # of target topics
    maker_of: Callable[[TablePlan], tuple[Maker, UUID]]
    execution: int
    sending_s: float
    deadline_s: float


class Flow:
    def __init__(self, client: LogClient, job: Job) -> None:
        self._client, self._job = client, job
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._writing = Writing(job.plan, execution=job.execution, sending_until=now + job.sending_s,
                                deadline=now + job.deadline_s)
        self._writers: dict[TopicPartition, OnceWriter] = {}
        self._pending: dict[int, int] = {}           # encoded bytes of pieces under way, by the piece's first offer
        self._backoff = Backoff(RealRandom())
        self._not_before = 0.0
        self._changed, self._delivered = asyncio.Event(), asyncio.Event()
        self.read_bytes = 0

    async def run(self) -> WriteResult:
        """The plan's claim is granted."""
        self._writing.claimed()
        reading = self._loop.create_task(self._read())
        try:
            while self._writing.result is None:
                self._send()
                if self._writing.result is None:
                    await self._something(reading)
            return self._writing.result
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            for writer in self._writers.values():
                writer.close()

    async def _something(self, reading: asyncio.Task[None]) -> None:
        """Until an answer, a portion, or some time has passed. What the reading failed of ends the work."""
        if reading.done() and (error := reading.exception()) is not None:
            raise error
        wait_s = limits.WRITE_LOOK_S
        if self._not_before > (now := self._loop.time()):
            wait_s = min(wait_s, self._not_before - now)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        self._changed.clear()

    # -- in ----------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        async for portion in self._job.portions:
            while sum(self._pending.values()) >= limits.WORK_PENDING_BYTES_MAX:
                self._delivered.clear()
                await self._delivered.wait()
            self._offer(portion)
            self._changed.set()

    def _offer(self, portion: Portion) -> None:
        self.read_bytes += portion.read_bytes
        if portion.told is not None:
            maker, topic_id = self._job.maker_of(portion.told.plan)
            for points, poison in maker.pieces(portion.told):
                if poison:
                    self._writing.offer(Piece(TopicPartition(topic_id, 0), points, poison))
                    continue
                batch = points.batch()
                self._pending[id(points)] = len(batch.body)
                self._writing.offer(Piece(TopicPartition(topic_id, batch.partition), points))
        self._writing.handed(portion.upto)

    # -- out ---------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        now = self._loop.time()
        if now < self._not_before:
            return
        for send in self._writing.sends(now):
            assert isinstance(send.points, Points)
            chunks = self._quarantined(send, send.points) if send.poison else self._sealed(send, send.points)
            answer = self._writer(send.target).send(chunks)
            answer.add_done_callback(partial(self._answered, send))

    def _writer(self, target: TopicPartition) -> OnceWriter:
        found = self._writers.get(target)
        if found is None or found.error is not None:
            found = self._writers[target] = self._client.once(self._job.names[target.topic_id], target.partition)
        return found

    def _answered(self, send: Send, answer: asyncio.Future[int]) -> None:
        error = Unreachable("the writer was closed") if answer.cancelled() else answer.exception()
        if error is None or isinstance(error, POISON):       # delivered, or about to be cut and encoded anew
            self._pending.pop(id(send.points), None)
            self._delivered.set()
        if error is None:
            self._backoff.reset()
            self._writing.answered(send, answer.result())
        else:
            told = error if isinstance(error, MillraceError) else Unreachable(str(error))
            self._writing.answered(send, told)
            self._not_before = max(self._not_before, self._loop.time() + self._backoff.next_s())
        self._changed.set()

    def _sealed(self, send: Send, points: Points) -> Iterable[Chunk]:
        plan = self._job.plan
        return sealed(points.batch(), producer_id=plan.writer_id, producer_epoch=plan.writer_epoch,
                      base_sequence=send.sequence)

    def _quarantined(self, send: Send, points: Points) -> Iterable[Chunk]:
        """The row as the log has it: what replays it needs no other copy [P9]."""
        table, batch, maker = points.plan.table, points.first_row().batch, points.maker
        change = encode_rows(batch)
        value = encode_quarantined(Quarantined(
            table=table.full_name, schema_id=table.id, before=batch.num_columns > 8 + len(table.columns),
            commit_lsn=batch.column("commit_lsn")[0].as_py(), seq=batch.column("seq")[0].as_py(), reason=send.poison,
            change=change if len(change) <= limits.QUARANTINE_ROW_BYTES_MAX else None,
        ))
        record = Record(value, points.first_key(), ((NAME, value_of(maker.provenance, points[0])),))
        plan = self._job.plan
        return build_batch([record], writer_id=plan.writer_id, epoch=plan.writer_epoch, sequence=send.sequence,
                           timestamp_ms=maker.now_us // 1000).chunks
