"""A changefeed's stored positions, read from the log that its group's coordinator writes them to [L21].

    partition of `__millrace.groups` ─▶ the changefeed's own records ─▶ by_key, and what has changed since

In: a changefeed. Out: positions as they are committed, each as it was stored last. One fetch serves all partitions of
the changefeed, however many there are. Decisions never stand on it: they are compare-and-set at the coordinator.
"""

from __future__ import annotations

from millrace import limits
from millrace.core.groups.groups import OURS
from millrace.core.groups.placing import GROUP_TOPIC, partition_of
from millrace.errors import Malformed
from millrace.log.client import LogClient
from millrace.model.groups import decode_record
from millrace.model.positions import PositionKey, StoredPosition
from millrace.wire.records import Record

REPLAY_FROM = "millrace.replay-from"   # header of each batch's first record: what is alive stands at or behind it


class StoredPositions:
    def __init__(self, client: LogClient, changefeed: str) -> None:
        self._client, self._changefeed = client, changefeed
        self._where = (GROUP_TOPIC, partition_of(OURS + changefeed, limits.GROUP_PARTITIONS))
        self._next = 0
        self.by_key: dict[PositionKey, StoredPosition] = {}

    async def load(self) -> None:
        """All that is committed now."""
        start, end = await self._client.ends(*self._where)
        self._next = start
        if start < end:
            last = [r for page in [p async for p in self._client.read(*self._where, end - 1, end)] for r in page]
            self._next = max(start, _replay_from(last))
        while self._next < end:
            await self.page(wait_s=1.0)

    async def page(self, *, wait_s: float) -> set[PositionKey]:
        """What has changed."""
        found = (await self._client.fetch({self._where: self._next}, wait_s=wait_s)).get(self._where)
        if found is None:
            return set()
        changed = {key for record in found.records if (key := self._replay(record)) is not None}
        self._next = found.next_offset
        return changed

    def _replay(self, record: Record) -> PositionKey | None:
        if record.key is None:
            raise Malformed(f"group record {record.offset} without a key")
        value = None if record.value is None else bytes(record.value)
        key, stored = decode_record(bytes(record.key), value)
        if not isinstance(key, PositionKey) or key.changefeed != self._changefeed:
            return None
        if stored is None:
            self.by_key.pop(key, None)
        else:
            assert isinstance(stored, StoredPosition), "its key says so"
            self.by_key[key] = stored
        return key


def _replay_from(records: list[Record]) -> int:
    named = [value for record in records for name, value in record.headers if name == REPLAY_FROM and value]
    return int.from_bytes(named[-1], "big") if named else 0
