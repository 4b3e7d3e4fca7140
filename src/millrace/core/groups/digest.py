"""The last word of every key of one partition of the group topic, and where a replay may begin [L21].

    ── older records ──┬─ restatement: every key's last word ─┬─ later records, each batch naming `replay_from` ──▶ end
                       └ replay_from

In: the records of the partition in log order, as they are appended or replayed. Out: when to restate, and what.
Promise: replaying from `replay_from` gives what replaying all gives. A replay reads at most twice what is alive, and
RESTATE_EVERY_RECORDS beside it, whether or not the log was compacted.
"""

from __future__ import annotations

from typing import NamedTuple

from millrace import limits


class Encoded(NamedTuple):
    key: bytes
    value: bytes | None         # None: a tombstone


class Digest:
    __slots__ = ("_alive", "_since", "replay_from")

    def __init__(self, replay_from: int = 0) -> None:
        self._alive: dict[bytes, bytes] = {}
        self._since = 0                 # records since `replay_from`
        self.replay_from = replay_from

    def note(self, record: Encoded) -> None:
        self._since += 1
        if record.value is None:
            self._alive.pop(record.key, None)
        else:
            self._alive[record.key] = record.value

    def has_room(self, records: tuple[Encoded, ...]) -> bool:
        """Whether these may be appended: new keys only up to a limit, changes and tombstones always."""
        new = {record.key for record in records if record.value is not None and record.key not in self._alive}
        return not new or len(self._alive) + len(new) <= limits.GROUP_KEYS_MAX

    @property
    def is_due(self) -> bool:
        return self._since >= limits.RESTATE_EVERY_RECORDS + 2 * len(self._alive)

    def alive(self) -> list[Encoded]:
        return [Encoded(key, value) for key, value in self._alive.items()]

    def restated(self, at: int) -> None:
        """Every key's last word was appended from offset `at` on."""
        self.replay_from, self._since = at, len(self._alive)
