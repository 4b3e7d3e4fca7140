"""Rounds on a real log: a mover that copies records from topic to topic under fence and sequence, and the least of a
dispatcher manager that a test of rounds needs: positions, take-overs, plans.

The mover is a real writer (`millrace.log.client`); only its claim is a file created exclusively, in place of the
compare-and-set beside the positions. Every record it writes says where it came from, so a take-over scans for it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from uuid import UUID

import msgspec

from millrace.log.client import LogClient, PlainClient, Record
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point, PositionKey, TargetEnd
from millrace.model.rounds import TaskPlan, TopicName, Work, WorkResult
from millrace.model.spans import Dispatcher
from millrace.model.writes import NextSequence, WritePlan, WriteResult
from millrace.pipeline.rounds import Ending, NotStarted
from support_secret import LOG_KEY

MOVER = "support_rounds:LoopBack"


class Setup(msgspec.Struct, frozen=True):
    """`slow_s`: before each record. `trouble`: {span: what its work does instead}."""

    bootstrap: tuple[str, ...]
    claims: str
    slow_s: float = 0.0
    trouble: dict[int, str] = {}


class LoopBack:
    """Copies [from, to) of a source partition to the first target partition."""

    def __init__(self, setup: bytes) -> None:
        self.setup = msgspec.json.decode(setup, type=Setup)
        self._client: LogClient | None = None

    async def claim(self, plan: TaskPlan) -> Collection[int]:
        return [n for n, work in enumerate(plan.works) if self._claimed(work)]

    def _claimed(self, work: Work) -> bool:
        name = f"{work.dispatcher.span}-{work.plan.epoch}-{work.plan.round}"
        try:
            fd = os.open(os.path.join(self.setup.claims, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        os.write(fd, str(os.getpid()).encode())
        os.close(fd)
        return True

    async def move(self, plan: TaskPlan, work: Work) -> WorkResult:
        await self._misbehave(work)
        names = {one.topic_id: one.name for one in plan.topics}
        client, write = await self._open(), work.plan
        target = write.partitions[0]
        sequence = next((s.sequence for s in write.sequences), 0)
        writer = client.writer(names[target.topic_id], target.partition, writer_id=write.writer_id,
                               epoch=write.writer_epoch, sequence=sequence)
        rows, end = 0, 0
        try:
            async for page in client.read(names[write.key.topic_id], write.key.partition, write.from_.offset,
                                          write.to.offset):
                for record in page:
                    if Point(record.offset, 0) in write.skip:
                        continue
                    await asyncio.sleep(self.setup.slow_s)
                    end = 1 + await writer.append([Record(record.value, headers=(("from", b"%d" % record.offset),))])
                    rows += 1
        finally:
            writer.close()
        result = WriteResult(
            write.round, "done", write.to, rows=rows, sequences=(NextSequence(*target, sequence + rows),),
            written=(TargetEnd(*target, end),) if rows else ())
        return WorkResult(work.dispatcher, result)

    async def _misbehave(self, work: Work) -> None:
        trouble = self.setup.trouble.get(work.dispatcher.span, "")
        if trouble == "raise":
            raise ValueError("planted")
        if trouble == "hang":
            await asyncio.sleep(3600)
        if trouble == "spin":
            time.sleep(3600)
        if trouble == "die":
            os._exit(9)

    async def _open(self) -> LogClient:
        if self._client is None:
            self._client = await LogClient(self.setup.bootstrap, client_id="loop-back", key=LOG_KEY).__aenter__()
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


class Feed:
    """Dispatchers 0..n-1, each with partition n of the source topic and partition n of the target topic."""

    def __init__(self, bootstrap: Sequence[str], topic: str, *, spans: int, records: int, claims: Path) -> None:
        self.client = PlainClient(bootstrap, client_id="feed", key=LOG_KEY)
        self.setup = Setup(tuple(bootstrap), str(claims))
        self.source, self.target, self.spans = f"{topic}.source", f"{topic}.target", range(spans)
        ids: list[UUID] = []
        for name in (self.source, self.target):
            self.client.create_topic(name, partitions=spans)
            ids.append(self.client.topic(name).id)
        self.topics = (TopicName(ids[0], self.source), TopicName(ids[1], self.target))
        self.wanted = {span: [b"%d/%d" % (span, n) for n in range(records)] for span in self.spans}
        for span in self.spans:
            self.client.append(self.source, span, [Record(value) for value in self.wanted[span]])
        self.writers = {span: self.client.new_writer_id() for span in self.spans}
        self.epochs = dict.fromkeys(self.spans, 0)
        self.next_offset = dict.fromkeys(self.spans, 0)
        self.ends = dict.fromkeys(self.spans, 0)
        self.sequences = dict.fromkeys(self.spans, 0)
        self.found: dict[int, set[int]] = {span: set() for span in self.spans}
        self.round = 0
        for span in self.spans:
            self.take_over(span)

    def take_over(self, span: int) -> None:
        """Epoch, fence, scan [V11]: what the former owner left behind the stored end is skipped, exactly."""
        self.epochs[span] += 1
        fence = self.client.fence(self.target, span, writer_id=self.writers[span], epoch=self.epochs[span])
        pages = self.client.read(self.target, span, self.ends[span], fence)
        self.found[span] |= {int(dict(record.headers)["from"] or b"") for page in pages for record in page}
        self.sequences[span] = 0

    def works(self, spans: Sequence[int], *, upto: int, deadline_s: float = 5.0) -> list[Work]:
        self.round += 1
        return [self._work(span, upto, deadline_s) for span in spans]

    def _work(self, span: int, upto: int, deadline_s: float) -> Work:
        target = TopicPartition(self.topics[1].topic_id, span)
        plan = WritePlan(
            key=PositionKey("feed", self.topics[0].topic_id, span), epoch=self.epochs[span], round=self.round,
            writer_id=self.writers[span], writer_epoch=self.epochs[span], from_=Point(self.next_offset[span], 0),
            to=Point(upto, 0), resolved=0, partitions=(target,), quarantine=target,
            skip=tuple(Point(offset, 0) for offset in sorted(self.found[span])),
            sequences=(NextSequence(*target, self.sequences[span]),))
        return Work(Dispatcher(span, self.epochs[span]), plan, deadline_s=deadline_s)

    def plans(self, tasks: Sequence[Sequence[int]], *, upto: int, deadline_s: float = 5.0) -> list[TaskPlan]:
        works = {work.dispatcher.span: work for work in
                 self.works([span for task in tasks for span in task], upto=upto, deadline_s=deadline_s)}
        return [TaskPlan("feed", self.round, MOVER, msgspec.json.encode(self.setup), self.topics,
                         tuple(works[span] for span in task)) for task in tasks]

    def settle(self, ending: Ending) -> None:
        """Commits what is known; takes over what is not [P5]."""
        if isinstance(ending, NotStarted):
            return
        for one in ending.results:
            span, result = one.dispatcher.span, one.result
            if result.outcome == "unknown":
                self.take_over(span)
                continue
            self.next_offset[span] = result.to.offset
            self.sequences[span] = result.sequences[0].sequence
            for end in result.written:
                self.ends[span] = end.offset
            self.found[span] = {offset for offset in self.found[span] if offset >= result.to.offset}

    def delivered(self, span: int) -> list[bytes]:
        _, end = self.client.ends(self.target, span)
        return [record.value for page in self.client.read(self.target, span, 0, end) for record in page]

    def close(self) -> None:
        self.client.close()


async def claimed_by(feed: Feed, span: int) -> int:
    """The pid of the worker that works for `span` in the round planned last, once there is one."""
    claim = Path(feed.setup.claims) / f"{span}-{feed.epochs[span]}-{feed.round}"
    while not (claim.exists() and claim.read_text()):
        await asyncio.sleep(0.02)
    return int(claim.read_text())
