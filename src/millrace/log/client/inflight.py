"""Which batch of one writer on one partition may be sent now, and what an answer means [L20, L22, L28].

In: batches in order (`add`), answers (`acked`, `failed`, `lost`). Out: the next batch for a route (`next`), and those
that are done, in order. Promise: sequences leave in order; at most `window` batches are unsettled, so the broker still
knows every one of them and answers a repeat with its first offset; after a failure the window is settled first, then
the rest is sent again, in order and with the same sequences.

    waiting ─next─▶ SENT ─acked─▶ DONE ─(all before it done)─▶ given out
                     │ ▲
      failed or lost ▼ │ next, once nothing is SENT
                    AGAIN

Nothing is pipelined behind a batch before one was acknowledged since the start or the last failure: a broker that does
not know a producer takes any sequence, so a second batch could overtake a lost first one.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

from millrace.core.producers import advance
from millrace.errors import MillraceError, OutOfOrderSequence
from millrace.limits import PRODUCER_BATCHES_KEPT


class State(Enum):
    WAITING = "waiting"
    SENT = "sent"
    AGAIN = "again"
    DONE = "done"


class Batch:
    """`content` is the owner's. `attempt` tells the answer of one sending from that of another."""

    __slots__ = ("attempt", "content", "count", "offset", "route", "sequence", "state")

    def __init__(self, content: Any, *, count: int, sequence: int) -> None:
        self.content, self.count, self.sequence = content, count, sequence
        self.state = State.WAITING
        self.attempt = 0
        self.offset = -1
        self.route: object = None


class Inflight:
    __slots__ = ("_next_sequence", "_pipelined", "_settling", "_unsettled", "_waiting", "_window")

    def __init__(self, *, sequence: int = 0, window: int = PRODUCER_BATCHES_KEPT) -> None:
        self._window = window
        self._next_sequence = sequence
        self._waiting: deque[Batch] = deque()
        self._unsettled: deque[Batch] = deque()     # in the order of their sequences
        self._settling = False                      # after a failure, until nothing is out
        self._pipelined = False                     # acknowledged since: more may be sent behind what is out

    @property
    def sequence(self) -> int:
        """Of the next batch that is added."""
        return self._next_sequence

    @property
    def is_empty(self) -> bool:
        return not self._unsettled and not self._waiting

    def wants_new(self, route: object) -> bool:
        """A batch added now would be sent at once: the owner need not cut one earlier."""
        return not self._waiting and self._may_send(route) and not self._first_again() and self._has_room()

    def add(self, content: Any, *, count: int) -> Batch:
        batch = Batch(content, count=count, sequence=self._next_sequence)
        self._next_sequence = advance(self._next_sequence, count)
        self._waiting.append(batch)
        return batch

    def next(self, route: object) -> Batch | None:
        """The batch to send to `route` now; None: nothing, before an answer comes or something is added."""
        if not self._may_send(route):
            return None
        batch = self._first_again()
        if batch is None:
            if not self._waiting or not self._has_room():
                return None
            batch = self._waiting.popleft()
            self._unsettled.append(batch)
        batch.state, batch.route = State.SENT, route
        batch.attempt += 1
        return batch

    def acked(self, batch: Batch, attempt: int, offset: int) -> list[Batch]:
        """The batches that are done now, in order."""
        if batch.state is not State.SENT or batch.attempt != attempt:
            return []                               # given up meanwhile: its repeat will be told the same offset
        batch.state, batch.offset = State.DONE, offset
        self._pipelined = not self._settling
        self._settle()
        done: list[Batch] = []
        while self._unsettled and self._unsettled[0].state is State.DONE:
            done.append(self._unsettled.popleft())
        return done

    def failed(self, batch: Batch, attempt: int, error: MillraceError) -> bool:
        """False: it cannot be sent again, and nothing behind it either."""
        if batch.state is not State.SENT or batch.attempt != attempt:
            return True
        if not error.retriable and not self._is_gap(batch, error):
            return False
        self._again(batch)
        return True

    def lost(self, route: object) -> bool:
        """Nothing more is to be expected from there. Whether anything was out."""
        out = [batch for batch in self._unsettled if batch.state is State.SENT and batch.route is route]
        for batch in out:
            self._again(batch)
        return bool(out)

    def drop_all(self) -> list[Batch]:
        """The writer is over: what it leaves undone, in order."""
        left = [*self._unsettled, *self._waiting]
        self._unsettled.clear()
        self._waiting.clear()
        return left

    def routes(self) -> list[object]:
        """Where something is out."""
        return list(dict.fromkeys(batch.route for batch in self._unsettled if batch.state is State.SENT))

    # -- inside ----------------------------------------------------------------------------------------------------

    def _may_send(self, route: object) -> bool:
        out = [batch for batch in self._unsettled if batch.state is State.SENT]
        if not out:
            return True
        return self._pipelined and all(batch.route is route for batch in out)

    def _has_room(self) -> bool:
        return len(self._unsettled) < self._window

    def _first_again(self) -> Batch | None:
        return next((batch for batch in self._unsettled if batch.state is State.AGAIN), None)

    def _is_gap(self, batch: Batch, error: MillraceError) -> bool:
        """Refused only because one before it failed: not its own fault."""
        if not isinstance(error, OutOfOrderSequence):
            return False
        return any(b.state is not State.DONE for b in self._before(batch))

    def _before(self, batch: Batch) -> list[Batch]:
        return list(self._unsettled)[: self._unsettled.index(batch)]

    def _again(self, batch: Batch) -> None:
        batch.state = State.AGAIN
        self._settling, self._pipelined = True, False
        self._settle()

    def _settle(self) -> None:
        if self._settling and not any(batch.state is State.SENT for batch in self._unsettled):
            self._settling = False
