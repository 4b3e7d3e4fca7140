"""Clients of the simulated world. Each writes to one partition, one request at a time.

    plain       acks=all, tries a value a few times, then gives it up as unknown
    one         acks=1: may lose, must not be acknowledged without a lease
    idempotent  acks=all with sequences, never gives up: exactly once, in order
    writer      as idempotent, but takes over from itself now and then with a fence of the next epoch
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.model.ids import TopicPartition
from millrace_sim.machines.checkers import Violation
from millrace_sim.machines.disk import Entry
from millrace_sim.machines.wire import NotProduced, Produce, Produced

if TYPE_CHECKING:
    from millrace_sim.machines.world import World

KINDS = ("idempotent", "plain", "writer", "one")
TRIES_MAX = 3


class Client:
    def __init__(self, world: World, client_id: int, tp: TopicPartition, kind: str) -> None:
        self.world = world
        self.id = client_id
        self.tp = tp
        self.kind = kind
        self.acks = 1 if kind == "one" else -1
        self.target = world.pick_broker()
        self.last_ack_at = -1.0
        self.stopped = False
        self._epoch = 0
        self._sequence = 0
        self._fencing = kind == "writer"
        self._entry: Entry | None = None
        self._request_id = -1
        self._sent_at = -1.0
        self._tries = 0
        self._was_refused = False  # the next step sends it again, to where the answer pointed

    def step(self) -> None:
        """Sends the next value, or the present one again when its answer stays out."""
        world = self.world
        if self._entry is None:
            if self.stopped:
                return
            if self.kind == "writer" and not self._fencing and world.rng.random() < 0.03:
                self._fencing, self._epoch, self._sequence = True, self._epoch + 1, 0
            self._entry = self._next()
            self._tries = 0
            self._send()
        elif self._was_refused or world.now - self._sent_at > world.times.client_s:
            if not self._was_refused:
                self.target = world.pick_broker()
            self._retry()
        world.at(world.rng.uniform(0.5, 1.5) * world.times.think_s, self.step)

    def _next(self) -> Entry:
        value = self.world.next_id()
        if self.kind in ("plain", "one"):
            return Entry(-1, value)
        if self._fencing:
            return Entry(-1, value, self.id, self._epoch, -1, fence=True)
        return Entry(-1, value, self.id, self._epoch, self._sequence)

    def _send(self) -> None:
        assert self._entry is not None
        self._tries += 1
        self._was_refused = False
        self._request_id = self.world.next_id()
        self._sent_at = self.world.now
        self.world.send(self.id, self.target, Produce(self.tp, self._request_id, self.acks, self._entry))

    def _retry(self) -> None:
        if self.kind in ("plain", "one") and self._tries >= TRIES_MAX:
            self._entry = None
        else:
            self._send()

    def on_message(self, m: object) -> None:
        if isinstance(m, Produced) and m.request_id == self._request_id and self._entry is not None:
            self._acked()
        elif isinstance(m, NotProduced) and m.request_id == self._request_id and self._entry is not None:
            self._refused(m)

    def _acked(self) -> None:
        self.last_ack_at = self.world.now
        if self._fencing:
            self._fencing = False
        elif self.kind in ("idempotent", "writer"):
            self._sequence += 1
        self._entry = None

    def _refused(self, m: NotProduced) -> None:
        """One request at a time and never given up: only a lost acknowledged batch leaves a gap."""
        if m.code in ("out_of_order_sequence_number", "invalid_producer_epoch"):
            raise Violation(f"client {self.id} ({self.kind}), {self._entry}: {m.code}")
        self.target = m.leader if m.leader in self.world.nodes else self.world.pick_broker()
        self._was_refused = True
