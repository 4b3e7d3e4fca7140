"""The controller's durable store: one office with a token, one log. A call is atomic, its answer may be lost."""

from __future__ import annotations

from typing import NamedTuple

from millrace.model.records import ControllerRecord


class Acquire(NamedTuple):
    member: int
    sent_at: float


class Renew(NamedTuple):
    token: int
    sent_at: float


class Append(NamedTuple):
    token: int
    expected_index: int
    records: tuple[ControllerRecord, ...]
    append_id: int


class Read(NamedTuple):
    after_index: int
    read_id: int


class Won(NamedTuple):
    token: int
    sent_at: float


class Held(NamedTuple):
    holder: int


class Renewed(NamedTuple):
    sent_at: float


class Appended(NamedTuple):
    last_index: int
    append_id: int


class Conflict(NamedTuple):
    append_id: int


class DeposedAnswer(NamedTuple):
    token: int


class ReadDone(NamedTuple):
    records: tuple[ControllerRecord, ...]
    read_id: int


Call = Acquire | Renew | Append | Read
Answer = Won | Held | Renewed | Appended | Conflict | DeposedAnswer | ReadDone


class SimStore:
    """`now` is the store's own clock."""

    def __init__(self, tenure_s: float) -> None:
        self.tenure_s = tenure_s
        self.records: list[ControllerRecord] = []
        self.token = 0
        self.holder = -1
        self.until = 0.0

    def handle(self, now: float, call: Call) -> Answer:
        if isinstance(call, Acquire):
            return self._acquire(now, call)
        if isinstance(call, Read):
            return ReadDone(tuple(self.records[call.after_index :]), call.read_id)
        if call.token != self.token:
            return DeposedAnswer(call.token)
        if isinstance(call, Renew):
            self.until = max(self.until, now + self.tenure_s)
            return Renewed(call.sent_at)
        if call.expected_index != len(self.records):
            return Conflict(call.append_id)
        self.records += call.records
        return Appended(len(self.records), call.append_id)

    def _acquire(self, now: float, call: Acquire) -> Answer:
        if now < self.until:
            return Held(self.holder)
        self.token += 1
        self.holder, self.until = call.member, now + self.tenure_s
        return Won(self.token, call.sent_at)
