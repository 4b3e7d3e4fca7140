"""Producers that write a little, fall silent while the log goes on and is cut, and come back at the end [L20, L28].

In: a client, a partition. Out: a few writes early; when told to stop, the last of them again, one of a fenced epoch,
and the next. What a log knows of them lies in batches that retention may have removed long ago: a repeat still gets its
first place, a lower epoch is still refused, whoever leads by then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from millrace.ops.ports import Random
from millrace_sim.checkers import History, Violation, Where
from millrace_sim.shell.client import CallFailed, Client, Fields
from millrace_sim.shell.workload import (
    INVALID_PRODUCER_EPOCH,
    PRODUCE_TIMEOUT_MS,
    Batch,
    Progress,
    encode_batch,
    refresh,
    tell_acked,
)

BATCHES = 3
FENCED, PRESENT = 1, 2         # epochs of a writer


@dataclass(slots=True, kw_only=True)
class Sleeper:
    """`writer` -1: a plain idempotent producer, which gets an id; else a writer that fences its own former epoch."""

    client: Client
    history: History
    random: Random
    where: Where
    progress: Progress
    writer: int = -1
    identity: tuple[int, int] = (-1, -1)

    async def run(self) -> None:
        if await self._begin():
            last = await self._write(0, BATCHES)
            while not self.progress.stopping:
                await self._nap()
            await self._wake_up(last)
        self.progress.done = True

    async def _begin(self) -> bool:
        """False: the world stopped before it had a name."""
        while not self.progress.stopping:
            try:
                if self.writer >= 0:
                    if await self._fence(FENCED) and await self._fence(PRESENT):
                        self.identity = (self.writer, PRESENT)
                        return True
                else:
                    found = await self.client.init_producer(sorted(self.client.brokers)[self._any()])
                    if found is not None:
                        self.identity = found
                        return True
            except CallFailed as exc:
                self.progress.last_error = str(exc)
            await self._back_off()
        return False

    def _any(self) -> int:
        return int(self.random.uniform(0, len(self.client.brokers) - 0.001))

    async def _fence(self, epoch: int) -> bool:
        """An answer that was lost is asked for again: the same fence, or one that a later call has passed."""
        answer = await self.client.fence(self.where, self.writer, epoch)
        if answer["error_code"] == 0:
            self.history.fenced(self.where, self.writer, epoch, answer["offset"])
        return answer["error_code"] in (0, INVALID_PRODUCER_EPOCH)

    async def _write(self, first: int, count: int) -> Batch:
        """One by one, each until it is acknowledged. The last."""
        for sequence in range(first, first + count):
            value = f"{self.progress.name}:{sequence}".encode()
            self.history.sent(self.where, value, once=True)
            batch = Batch([value], sequence)
            await self._until_acked(batch)
        return batch

    async def _wake_up(self, last: Batch) -> None:
        await self._until_acked(last)          # the history knows where it was before
        if self.writer >= 0:
            await self._refused(Batch([f"{self.progress.name}:fenced".encode()], 0))
        await self._write(last.first_sequence + 1, 1)

    async def _until_acked(self, batch: Batch) -> None:
        while True:
            answer = await self._send(batch, self.identity)
            if answer["error_code"] == 0:
                tell_acked(self.history, self.where, batch, answer)
                self.progress.written += 1
                return
            self.progress.last_error = f"error {answer['error_code']}"
            await self._back_off()

    async def _refused(self, batch: Batch) -> None:
        while True:
            answer = await self._send(batch, (self.writer, FENCED))
            if answer["error_code"] == INVALID_PRODUCER_EPOCH:
                return
            if answer["error_code"] == 0:
                raise Violation(f"{self.where}: writer {self.writer} wrote in epoch {FENCED}, {PRESENT} is fenced")
            await self._back_off()

    async def _send(self, batch: Batch, identity: tuple[int, int]) -> Fields:
        content = encode_batch(batch, identity, self.random)
        try:
            return await self.client.produce(self.where, content, acks=-1, timeout_ms=PRODUCE_TIMEOUT_MS)
        except CallFailed as exc:
            self.progress.last_error = str(exc)
            return {"error_code": -1}

    async def _nap(self) -> None:
        await asyncio.sleep(self.random.uniform(0.1, 0.5))

    async def _back_off(self) -> None:
        await asyncio.sleep(self.random.uniform(0.02, 0.3))
        await refresh(self.client)
