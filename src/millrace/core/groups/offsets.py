"""Committed offsets of groups: what replaying the committed records gives, and what is on its way [L21].

Promise: `of` tells only what is committed; an offset with a commit on its way is never taken for unused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from uuid import UUID

from millrace.model.groups import GroupRecord, OffsetKey, OffsetValue

Partition = tuple[str, int]     # by topic name, as consumers know it
Topic = tuple[str, UUID | None]  # its name, and the id it had when the offset was committed


class Offsets:
    __slots__ = ("_by_group", "_by_topic", "_pending")

    def __init__(self) -> None:
        self._by_group: dict[str, dict[Partition, OffsetValue]] = {}
        self._by_topic: dict[Topic, dict[OffsetKey, None]] = {}
        self._pending: Counter[OffsetKey] = Counter()

    def replay(self, key: OffsetKey, value: OffsetValue | None) -> None:
        group, topic, partition = key
        known = self._by_group.get(group, {}).get((topic, partition))
        if known is not None:
            self._forget(key, known)
        if value is not None:
            self._by_group.setdefault(group, {})[topic, partition] = value
            self._by_topic.setdefault((topic, value.topic_id), {})[key] = None

    def _forget(self, key: OffsetKey, value: OffsetValue) -> None:
        group, topic, partition = key
        del self._by_group[group][topic, partition]
        if not self._by_group[group]:
            del self._by_group[group]
        keys = self._by_topic[topic, value.topic_id]
        del keys[key]
        if not keys:
            del self._by_topic[topic, value.topic_id]

    def groups(self) -> Iterable[str]:
        return self._by_group.keys()

    def of(self, group: str, wanted: Iterable[Partition] | None = None) -> dict[Partition, OffsetValue]:
        known = self._by_group.get(group, {})
        return dict(known) if wanted is None else {p: known[p] for p in wanted if p in known}

    def of_topics_gone(self, topic_id_of: Callable[[str], UUID | None]) -> Iterator[OffsetKey]:
        """Offsets of topics that are no more, also where another topic has the name now. Without a recorded id the name
        decides. What has a record on its way is left for the next look."""
        for (name, recorded), keys in self._by_topic.items():
            present = topic_id_of(name)
            if present is None or (recorded is not None and recorded != present):
                yield from (key for key in keys if key not in self._pending)

    # -- on their way --------------------------------------------------------------------------------------------------
    def pend(self, records: Iterable[GroupRecord]) -> None:
        self._pending.update(record.key for record in records if isinstance(record.key, OffsetKey))

    def settle(self, records: Iterable[GroupRecord], *, committed: bool) -> None:
        for key, value in records:
            if isinstance(key, OffsetKey):
                self._pending[key] -= 1
                if not self._pending[key]:
                    del self._pending[key]
                if committed:
                    assert value is None or isinstance(value, OffsetValue)
                    self.replay(key, value)

    def is_pending(self, group: str) -> bool:
        return any(key.group == group for key in self._pending)

    def unused(self, group: str, *, since_ms: int, old_ms: int) -> list[Partition]:
        """Neither committed nor in use by members later than `old_ms`; `since_ms`: since when there are no members."""
        known = self._by_group.get(group, {})
        return [
            p for p, value in known.items()
            if max(value.commit_ms, since_ms) <= old_ms and OffsetKey(group, *p) not in self._pending
        ]
