"""Stored positions of changefeeds, at the coordinator of group `millrace.<changefeed>` [L21, P3, P5].

In: a key and what to do. Out: the position, or the refusal of core.delivery.positions as it was raised there.
Promise: a call whose answer was lost is repeated, and answered as the first time; what is told is committed.
"""

from __future__ import annotations

from millrace.core.delivery.positions import Commit
from millrace.core.groups.groups import OURS
from millrace.errors import from_code
from millrace.log.client.client import LogClient
from millrace.model.position_calls import (
    AnyPositionCall,
    ClaimPosition,
    ClosePosition,
    CommitPosition,
    CreatePosition,
    ForgetPosition,
    ReadPosition,
    TakePosition,
    encode_call,
)
from millrace.model.positions import Claim, Point, PositionKey, StoredPosition, decode_position
from millrace.model.tables import Lsn


class PositionClient:
    def __init__(self, client: LogClient) -> None:
        self._client = client

    async def read(self, key: PositionKey) -> StoredPosition:
        return await self._stored(key, ReadPosition())

    async def create(
        self, key: PositionKey, *, epoch: int, at: Point, resolved: Lsn, writer_id: int
    ) -> StoredPosition:
        return await self._stored(key, CreatePosition(epoch, at.offset, at.row, resolved, writer_id))

    async def take(self, key: PositionKey, epoch: int, *, new_writer_id: int | None = None) -> StoredPosition:
        return await self._stored(key, TakePosition(epoch, new_writer_id))

    async def close(self, key: PositionKey, epoch: int) -> StoredPosition:
        return await self._stored(key, ClosePosition(epoch))

    async def forget(self, key: PositionKey, epoch: int) -> None:
        await self._ask(key, ForgetPosition(epoch))

    async def claim(self, key: PositionKey, claim: Claim) -> None:
        await self._ask(key, ClaimPosition(claim))

    async def commit(self, key: PositionKey, commit: Commit) -> None:
        await self._ask(key, CommitPosition(commit.epoch, *commit.from_, *commit.to, commit.ends, commit.resolved))

    async def _stored(self, key: PositionKey, call: AnyPositionCall) -> StoredPosition:
        position = await self._ask(key, call)
        assert position is not None
        return position

    async def _ask(self, key: PositionKey, call: AnyPositionCall) -> StoredPosition | None:
        fields = {"topic_id": key.topic_id, "partition": key.partition, "call": encode_call(call)}
        group = OURS + key.changefeed
        answer = await self._client.ask_group(group, "MovePosition", {"group_id": group, **fields})
        if answer["refused"]:
            raise from_code(answer["refused"], answer["error_message"] or "")
        data = answer["position"]
        return decode_position(bytes(data)) if data is not None else None
