"""Committed offsets of groups: what replaying the committed records gives, and what is on its way [L21].

Promise: `of` tells only what is committed; an offset with a commit on its way is never taken for unused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from millrace.model.groups import GroupRecord, OffsetKey, OffsetValue

Partition = tuple[str, int]     # by topic name, as consumers know it


class Offsets:
    __slots__ = ("_by_group", "_pending")

    def __init__(self) -> None:
        self._by_group: dict[str, dict[Partition, OffsetValue]] = {}
        self._pending: Counter[OffsetKey] = Counter()

    def replay(self, key: OffsetKey, value: OffsetValue | None) -> None:
        group, topic, partition = key
        if value is not None:
            self._by_group.setdefault(group, {})[topic, partition] = value
        elif group in self._by_group:
            self._by_group[group].pop((topic, partition), None)
            if not self._by_group[group]:
                del self._by_group[group]

    def groups(self) -> Iterable[str]:
        return self._by_group.keys()

    def of(self, group: str, wanted: Iterable[Partition] | None = None) -> dict[Partition, OffsetValue]:
        known = self._by_group.get(group, {})
        return dict(known) if wanted is None else {p: known[p] for p in wanted if p in known}

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
