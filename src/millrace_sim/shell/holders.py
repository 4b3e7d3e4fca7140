"""Holders of floors in the shell world: they register, move on, and read what they hold; others delete [L23, F10].

In: a client, a partition. Out: floors at the controller, reads at the floor, deletions. A floor counts from the answer
that says so; from then on what it protects must be there, whoever leads, until its holder asked for anything else.
Retention runs beside it in every second seed, with log files so small that there is always something to cut, and with
so little kept that who was away for some seconds starts over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from millrace.core.retention import Defaults, RetentionConfig
from millrace.model.floors import FloorAt, SetFloors, decode_told, encode_call
from millrace.ops.ports import Random
from millrace_sim.checkers import Violation, Where
from millrace_sim.shell.client import CallFailed, Client
from millrace_sim.shell.workload import OFFSET_OUT_OF_RANGE, Progress, refresh

LOG_FILE_BYTES = 2_000
RETENTION_BYTES = 3_000
CHECK_S = 0.7


def has_retention(seed: int) -> bool:
    return seed % 2 == 0


def retention_of(seed: int) -> RetentionConfig:
    """In every fourth seed only clients cut, and they cut anywhere; in every other fourth the size does, too."""
    size = RETENTION_BYTES if seed % 4 == 2 else -1
    return RetentionConfig(check_s=CHECK_S if has_retention(seed) else 0.0, defaults=Defaults(-1, size))


@dataclass(slots=True, kw_only=True)
class Deleter:
    """Deletes records up to anywhere, also to the middle of a batch. What somebody holds is refused."""

    client: Client
    random: Random
    where: Where
    progress: Progress

    async def run(self) -> None:
        while not self.progress.stopping:
            try:
                start, end = [await self.client.offset_of(self.where, which) for which in (-2, -1)]
                wanted = int(self.random.uniform(start, (start + end) / 2))
                told = await self.client.delete_records(self.where, wanted)
                if told["error_code"] == 0 and told["low_watermark"] < wanted:
                    raise Violation(f"{self.where}: all below {wanted} is deleted, {told['low_watermark']} is there")
            except CallFailed as exc:
                self.progress.last_error = str(exc)
                await refresh(self.client)
            await asyncio.sleep(self.random.uniform(0, 1.0))
        self.progress.done = True


@dataclass(slots=True, kw_only=True)
class Holder:
    client: Client
    random: Random
    where: Where
    owner: str
    progress: Progress
    epoch: int = 1
    floor: int = -1            # held for sure; -1: nothing is
    asked: int = -1            # in this epoch: a call without an answer may still come, so none asks for less

    async def run(self) -> None:
        while not self.progress.stopping:
            try:
                await self._step()
            except CallFailed as exc:
                self.progress.last_error = str(exc)
                await refresh(self.client)
            await asyncio.sleep(self.random.uniform(0, 1.0))
        self.progress.done = True

    async def _step(self) -> None:
        if self.floor < 0 or self.random.uniform(0, 1) < 0.3:
            await self._move()
        else:
            await self.check()

    async def _move(self) -> None:
        """Forward; now and then anew, under a greater epoch, wherever the log starts."""
        end = await self.client.offset_of(self.where, -1)
        if self.random.uniform(0, 1) < 0.2:
            self.epoch, self.asked = self.epoch + 1, -1
        low = self.asked if self.asked >= 0 else await self.client.offset_of(self.where, -2)
        wanted = self.asked = int(self.random.uniform(low, max(low, end) + 0.999))
        self.floor = -1        # until there is an answer, either may be true
        at = FloorAt(await self.client.topic_id(self.where[0]), self.where[1], wanted)
        told = await self.client.floors(encode_call(SetFloors(self.owner, self.epoch, (at,))))
        if told is None:
            return
        for one in decode_told(told).owners:
            self.floor = max((at.offset for at in one.floors), default=-1)

    async def check(self) -> None:
        """[F10] What was promised is there."""
        if self.floor < 0:
            return
        floor = self.floor
        end = await self.client.offset_of(self.where, -1)
        if floor >= end:
            return
        answer = await self.client.fetch(self.where, floor, max_wait_ms=0, max_bytes=100)
        if answer["error_code"] == OFFSET_OUT_OF_RANGE and self.floor == floor:
            start = await self.client.offset_of(self.where, -2)
            if start > floor:
                raise Violation(f"{self.where}: GONE: {self.owner} holds {floor}, the log starts at {start}")
