"""The office `source/<name>` as its holder uses it: decide, write, replay [DESIGN 3].

In: decisions over the replayed state. Out: their replies, once the records are durable. Promise: one decision at a
time; records are written under our epoch only, so a newer reader makes every later call raise Deposed; an append whose
answer was lost, or whose caller was cancelled, is found or decided again, never doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from millrace import limits
from millrace.core.decision import SourceDecision
from millrace.core.sources.registry import SourceState, office
from millrace.errors import Deposed, IndexConflict, StoreUnreachable
from millrace.model.sources import SourceRecords, decode_source, encode_record
from millrace.store.contract import Candidate, Store

Reply = TypeVar("Reply")

_READ = limits.RECORDS_PER_APPEND_MAX
_APPEND_BYTES = limits.STORE_APPEND_BYTES_MAX // 2   # room for the envelope of each record
_APPEND_RECORDS = 500
_AGAIN_S = 0.2


class SourceOffice:
    def __init__(self, store: Store, source: str, epoch: int) -> None:
        self._store, self._office, self.epoch = store, office(source), epoch
        self._lock = asyncio.Lock()
        self._index = 0
        self._in_doubt = False      # an append was sent whose end nobody has seen: it may stand behind `_index`
        self.state = SourceState(source)

    async def open(self, candidate: Candidate) -> None:
        """Takes the office under our epoch, then reads its history: nobody else adds to it from here on."""
        await self._store.grant(self._office, candidate, self.epoch)
        removed = await self._store.load_snapshot(self._office)
        if removed is not None:      # of a source of this name before: it stands for nothing
            self._index = removed[0]
        await self._catch_up()

    async def decide(self, decision: Callable[[SourceState], SourceDecision[Reply]]) -> Reply:
        """Writes what `decision` says about the state as it is now. An append that was cancelled may arrive at any
        time: what it left is replayed, and the decision is made again over the state with it."""
        async with self._lock:
            while True:
                if self._in_doubt:
                    await self._catch_up()
                    self._in_doubt = False
                made = decision(self.state)
                try:
                    for records in _groups(made.records):
                        await self._append(records)
                    return made.reply
                except IndexConflict:
                    self._in_doubt = True

    async def record(self, records: Sequence[SourceRecords]) -> None:
        """Durable and replayed when it returns."""
        await self.decide(lambda _: SourceDecision(tuple(records), None))

    async def check(self) -> None:
        """Raises Deposed when a newer epoch holds the office."""
        holder = await self._store.holder(self._office)
        if holder is not None and holder.token > self.epoch:
            raise Deposed(f"{self._office}: epoch {holder.token} reads it now, this is {self.epoch}")

    async def _append(self, records: Sequence[SourceRecords]) -> None:
        encoded = [encode_record(record) for record in records]
        self._in_doubt = True
        try:
            self._index = await self._store.append(self._office, self.epoch, self._index, encoded)
        except StoreUnreachable as error:
            await asyncio.sleep(_AGAIN_S)
            found = await self._catch_up()
            if found[:len(encoded)] != encoded:          # not there, or behind what a cancelled append has left
                raise IndexConflict(f"{self._office}: an append without an answer is decided again") from error
        else:
            for record in records:
                self.state.replay(record)
        self._in_doubt = False

    async def _catch_up(self) -> list[bytes]:
        """Replays and returns what stands behind the last index. Only we write under this epoch: all of it is ours."""
        found: list[bytes] = []
        while True:
            try:
                page = await self._store.read(self._office, self._index, _READ)
            except StoreUnreachable:
                await asyncio.sleep(_AGAIN_S)
                continue
            for index, data in page:
                self.state.replay(decode_source(data))
                self._index = index
                found.append(data)
            if not page:
                return found


def _groups(records: Sequence[SourceRecords]) -> list[list[SourceRecords]]:
    """In order, each small enough for one append."""
    groups: list[list[SourceRecords]] = []
    size = 0
    for record in records:
        length = len(encode_record(record))
        if not groups or size + length > _APPEND_BYTES or len(groups[-1]) >= _APPEND_RECORDS:
            groups.append([])
            size = 0
        groups[-1].append(record)
        size += length
    return groups
