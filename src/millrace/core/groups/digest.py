"""The last word of every key of one partition of the group topic, and where a replay may begin [L21].

    ── older records ──┬─ pieces of a restatement between other records ─┬─ later records, each batch naming ──▶ end
                       └ replay_from, once the last piece is written     ┘  `replay_from`

In: the records of the partition in log order, as they are appended or replayed. Out: what to write once more, a piece
with each change, so that nobody waits for a whole restatement.
Promise: replaying from `replay_from` gives what replaying all gives: a piece holds the words of its keys as they are
when it is written, and whatever changes later stands behind it. A replay reads at most three times what is alive, and
RESTATE_EVERY_RECORDS beside it, whether or not the log was compacted.
"""

from __future__ import annotations

from typing import NamedTuple

from millrace import limits


class Encoded(NamedTuple):
    key: bytes
    value: bytes | None         # None: a tombstone


class Digest:
    __slots__ = ("_alive", "_at", "_keys", "_since", "_since_start", "_start", "replay_from")

    def __init__(self, replay_from: int = 0) -> None:
        self._alive: dict[bytes, bytes] = {}
        self._since = 0                         # records since `replay_from`
        self.replay_from = replay_from
        self._keys: tuple[bytes, ...] = ()      # of a restatement under way
        self._at = self._start = self._since_start = 0

    def note(self, record: Encoded) -> None:
        self._since += 1
        self._since_start += 1
        if record.value is None:
            self._alive.pop(record.key, None)
        else:
            self._alive[record.key] = record.value

    def has_room(self, records: tuple[Encoded, ...]) -> bool:
        """Whether these may be appended: new keys only up to a limit, changes and tombstones always."""
        new = {record.key for record in records if record.value is not None and record.key not in self._alive}
        return not new or len(self._alive) + len(new) <= limits.GROUP_KEYS_MAX

    # -- restating -----------------------------------------------------------------------------------------------------
    def begin_if_due(self, end: int) -> bool:
        """Whether a piece is to be written; `end`: of the log now."""
        if not self._keys and self._since >= limits.RESTATE_EVERY_RECORDS + 2 * len(self._alive):
            self._keys = tuple(self._alive) or (b"",)
            self._at, self._start, self._since_start = 0, end, 0
        return bool(self._keys)

    def piece(self) -> tuple[list[Encoded], int]:
        """The next records of the restatement, and where its rest begins: what `restated` is told."""
        found: list[Encoded] = []
        size = 0
        at = self._at
        while at < len(self._keys) and size < limits.RESTATE_BATCH_BYTES:
            key = self._keys[at]
            at += 1
            value = self._alive.get(key)
            if value is not None:               # it is gone since: its tombstone stands behind the start
                found.append(Encoded(key, value))
                size += len(key) + len(value)
        return found, at

    def restated(self, rest: int) -> None:
        """The piece was appended."""
        self._at = rest
        if rest == len(self._keys):
            self.replay_from, self._since, self._keys = self._start, self._since_start, ()

    @property
    def alive(self) -> dict[bytes, bytes]:
        return self._alive
