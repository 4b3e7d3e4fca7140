"""What clients do: idempotent and plain producers, rival writers behind a fence, consumers that read and read again.

In: a client, a history to tell. Out: writes and reads until told to stop; then each producer finishes what it began, so
that after healing nothing may stay unanswered. Unknown outcomes are repeated, never given up, except by a writer that
learned it was fenced.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from millrace.ops.ports import Random
from millrace.wire import records
from millrace_sim.checkers import Entry, History, Violation, Where
from millrace_sim.shell.client import CallFailed, Client, Fields

OFFSET_OUT_OF_RANGE = 1
INVALID_PRODUCER_EPOCH = 47
BATCHES_IN_FLIGHT_MAX = 3
PRODUCE_TIMEOUT_MS = 2000


@dataclass(slots=True)
class Batch:
    values: list[bytes]
    first_sequence: int


@dataclass(slots=True)
class Progress:
    """How one client part is doing, for the world that waits for it."""

    name: str
    stopping: bool = False
    done: bool = False
    written: int = 0
    last_error: str = ""


@dataclass(slots=True, kw_only=True)
class Producer:
    """One producer of one partition. Idempotent ones keep several batches in flight; `acks` 1 promises nothing."""

    client: Client
    history: History
    random: Random
    where: Where
    progress: Progress
    idempotent: bool
    acks: int = -1
    gap_s: float = 0.02
    identity: tuple[int, int] = (-1, -1)
    pending: list[Batch] = field(default_factory=list)
    next_sequence: int = 0

    async def run(self) -> None:
        while self.idempotent and self.identity[0] < 0 and not self.progress.stopping:
            await self._ask_identity()
        while not self.progress.stopping or self.pending:
            self.fill()
            if self.pending and not await self._send():
                await self._back_off()
            await asyncio.sleep(self.random.uniform(0, 2 * self.gap_s))
        self.progress.done = True

    async def _ask_identity(self) -> None:
        brokers = sorted(self.client.brokers)
        broker = brokers[int(self.random.uniform(0, len(brokers) - 0.001))]
        try:
            found = await self.client.init_producer(broker)
        except CallFailed as exc:
            found = None
            self.progress.last_error = str(exc)
        if found is None:
            await asyncio.sleep(0.2)
        else:
            self.identity = found

    def fill(self) -> None:
        """New batches, up to what may be in flight."""
        room = BATCHES_IN_FLIGHT_MAX if self.idempotent else 1
        while not self.progress.stopping and len(self.pending) < room:
            count = 1 + int(self.random.uniform(0, 2.999))
            values = [f"{self.progress.name}:{self.progress.written + i}".encode() for i in range(count)]
            for value in values:
                self.history.sent(self.where, value, once=self.idempotent)
            self.progress.written += count
            self.pending.append(Batch(values, self.next_sequence))
            self.next_sequence += count
            if self.random.uniform(0, 1) < 0.5:
                break

    async def _send(self) -> bool:
        """All pending batches, in their order, without waiting in between. True when all were acknowledged."""
        tasks = [asyncio.ensure_future(self._send_one(batch)) for batch in self.pending]
        outcomes = await asyncio.gather(*tasks)
        self.pending = [batch for batch, acked in zip(self.pending, outcomes, strict=True) if not acked]
        return not self.pending

    async def _send_one(self, batch: Batch) -> bool:
        content = encode_batch(batch, self.identity, self.random)
        try:
            answer = await self.client.produce(self.where, content, acks=self.acks, timeout_ms=PRODUCE_TIMEOUT_MS)
        except CallFailed as exc:
            self.progress.last_error = str(exc)
            return False
        if answer["error_code"]:
            self.progress.last_error = f"error {answer['error_code']}"
            return False
        if self.acks == -1:
            tell_acked(self.history, self.where, batch, answer)
        return True

    async def _back_off(self) -> None:
        await asyncio.sleep(self.random.uniform(0.02, 0.3))
        await refresh(self.client)


@dataclass(slots=True)
class WriterEpochs:
    """Rivals of one writer id draw ever higher epochs."""

    writer: int
    last: int = 0

    def next(self) -> int:
        self.last += 1
        return self.last


@dataclass(slots=True, kw_only=True)
class Writer:
    """Takes the partition by a fence, writes with sequences from 0, loses it to its rival, and takes it again [L28]."""

    client: Client
    history: History
    random: Random
    where: Where
    progress: Progress
    epochs: WriterEpochs
    gap_s: float = 0.05

    async def run(self) -> None:
        while not self.progress.stopping:
            epoch = self.epochs.next()
            if await self._fence(epoch):
                await self._write(epoch)
            await asyncio.sleep(self.random.uniform(0, 1.0))
        self.progress.done = True

    async def _fence(self, epoch: int) -> bool:
        while not self.progress.stopping:
            try:
                answer = await self.client.fence(self.where, self.epochs.writer, epoch)
            except CallFailed as exc:
                answer = {"error_code": -1, "error_message": str(exc)}
            if answer["error_code"] == 0:
                self.history.fenced(self.where, self.epochs.writer, epoch, answer["offset"])
                return True
            if answer["error_code"] == INVALID_PRODUCER_EPOCH:
                return False
            self.progress.last_error = f"fence: {answer['error_code']} {answer.get('error_message')}"
            await self._back_off()
        return False

    async def _write(self, epoch: int) -> None:
        sequence = 0
        while not self.progress.stopping:
            values = [f"{self.progress.name}:{epoch}:{sequence}".encode()]
            self.history.sent(self.where, values[0], once=True)
            if not await self._write_one(Batch(values, sequence), epoch):
                return
            self.progress.written += 1
            sequence += 1
            await asyncio.sleep(self.random.uniform(0, 2 * self.gap_s))

    async def _write_one(self, batch: Batch, epoch: int) -> bool:
        """Until acknowledged or fenced. A stopping writer still finishes: silence is not an answer."""
        content = encode_batch(batch, (self.epochs.writer, epoch), self.random)
        while True:
            try:
                answer = await self.client.produce(self.where, content, acks=-1, timeout_ms=PRODUCE_TIMEOUT_MS)
            except CallFailed as exc:
                answer = {"error_code": -1}
                self.progress.last_error = str(exc)
            if answer["error_code"] == 0:
                tell_acked(self.history, self.where, batch, answer)
                return True
            if answer["error_code"] == INVALID_PRODUCER_EPOCH:
                return False
            await self._back_off()

    async def _back_off(self) -> None:
        await asyncio.sleep(self.random.uniform(0.02, 0.3))
        await refresh(self.client)


@dataclass(slots=True, kw_only=True)
class Consumer:
    """Reads one partition from its start, on and on; now and then from the start again."""

    client: Client
    history: History
    random: Random
    where: Where
    progress: Progress
    position: int = 0
    end: int = -1                      # HW as last told

    async def run(self) -> None:
        while not self.progress.stopping:
            if not await self.step(max_wait_ms=500):
                await asyncio.sleep(self.random.uniform(0.02, 0.3))
                await refresh(self.client)
            elif self.random.uniform(0, 1) < 0.01:
                self.position = 0
            await asyncio.sleep(self.random.uniform(0, 0.05))
        self.progress.done = True

    async def step(self, *, max_wait_ms: int) -> bool:
        """One fetch. False: ask for metadata and try again."""
        size = int(self.random.uniform(100, 20_000))
        try:
            answer = await self.client.fetch(self.where, self.position, max_wait_ms=max_wait_ms, max_bytes=size)
        except CallFailed as exc:
            self.progress.last_error = str(exc)
            return False
        if answer["error_code"]:
            self.progress.last_error = f"error {answer['error_code']}"
            if answer["error_code"] == OFFSET_OUT_OF_RANGE:
                await self._skip_what_is_gone()
            return False
        self.end = answer["high_watermark"]
        self._take(bytes(answer["records"] or b""))
        return True

    async def _skip_what_is_gone(self) -> None:
        """As a consumer with auto.offset.reset=earliest."""
        try:
            self.position = max(self.position, await self.client.offset_of(self.where, -2))
        except CallFailed as exc:
            self.progress.last_error = str(exc)

    def _take(self, data: bytes) -> None:
        for header in records.parse_batches(data) if data else ():
            for offset, entry in entries_of(data, header):
                if offset >= self.end:
                    raise Violation(f"{self.where}: offset {offset} was served, HW is {self.end}")
                if offset > self.position:
                    raise Violation(f"{self.where}: asked for {self.position}, got {offset}")
                if offset == self.position:
                    self.history.read(self.where, offset, entry, self.progress.name)
                    self.position += 1
                    self.progress.written += 1


def entries_of(data: bytes, header: records.BatchHeader) -> list[tuple[int, Entry]]:
    is_fence = records.is_fence(data, header)
    found = []
    for number, record in enumerate(records.records_of(data, header)):
        sequence = -1 if header.base_sequence < 0 else header.base_sequence + number
        value = None if header.is_control else record.value
        entry = Entry(value, header.producer_id, header.producer_epoch, sequence, header.leader_epoch, is_fence)
        found.append((record.offset, entry))
    return found


def encode_batch(batch: Batch, identity: tuple[int, int], random: Random) -> bytes:
    """Values padded by chance, so that batches differ in size; the padding is a header, not the value."""
    padding = (("pad", b"." * int(random.uniform(0, 300))),)
    return bytes(records.build_batch(
        [records.Record(value, headers=padding) for value in batch.values],
        producer_id=identity[0], producer_epoch=identity[1],
        base_sequence=batch.first_sequence if identity[0] >= 0 else -1,
    ))


def tell_acked(history: History, where: Where, batch: Batch, answer: Fields) -> None:
    for number, value in enumerate(batch.values):
        history.acked(where, value, answer["base_offset"] + number)


async def refresh(client: Client) -> None:
    try:
        await client.refresh()
    except CallFailed:
        return
