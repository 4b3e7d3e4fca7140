"""The order of a writer's batches, against the broker's own judge of sequences [L20, L22, L28]."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.producers import Duplicate, Producers, advance
from millrace.errors import (
    InvalidProducerEpoch,
    MillraceError,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    RequestTimedOut,
)
from millrace.log.client.inflight import Batch, Inflight

A, B = "route a", "route b"
WRITER, EPOCH = 7, 3


def sent(machine: Inflight, route: str = A) -> list[Batch]:
    found = []
    while (batch := machine.next(route)) is not None:
        found.append(batch)
    return found


def known(count: int) -> tuple[Inflight, list[Batch]]:
    """A machine whose first batch was acknowledged, with `count` more of one record each, all sent."""
    machine = Inflight()
    first = machine.add("first", count=1)
    assert sent(machine) == [first]
    assert machine.acked(first, first.attempt, 0) == [first]
    batches = [machine.add(n, count=1) for n in range(count)]
    return machine, batches


def test_L20_nothing_is_sent_behind_the_first_batch_before_it_is_acknowledged() -> None:
    machine = Inflight()
    batches = [machine.add(n, count=2) for n in range(3)]
    assert sent(machine) == batches[:1]
    assert machine.acked(batches[0], 1, 10) == batches[:1]
    assert sent(machine) == batches[1:]
    assert [b.sequence for b in batches] == [0, 2, 4]


def test_L20_five_in_flight() -> None:
    machine, batches = known(8)
    assert sent(machine) == batches[:5]
    assert machine.acked(batches[0], 1, 1) == batches[:1]
    assert sent(machine) == batches[5:6]


def test_L22_after_a_failure_the_rest_is_sent_again_in_order() -> None:
    machine, batches = known(7)
    assert sent(machine) == batches[:5]
    assert machine.failed(batches[0], 1, NotLeader(""))
    assert sent(machine) == []                                  # the window is settled first
    for batch in batches[1:5]:
        assert machine.failed(batch, 1, OutOfOrderSequence("gap"))
    assert sent(machine, B) == batches[:1]
    assert machine.acked(batches[0], 2, 1) == batches[:1]
    assert sent(machine, B) == batches[1:6]
    assert [b.sequence for b in batches] == list(range(1, 8))


def test_L22_a_later_answer_waits_for_an_earlier_repeat() -> None:
    machine, batches = known(2)
    sent(machine)
    assert machine.failed(batches[0], 1, RequestTimedOut(""))
    assert machine.acked(batches[1], 1, 2) == []
    assert sent(machine) == batches[:1]
    assert machine.acked(batches[0], 2, 1) == batches
    assert [b.offset for b in batches] == [1, 2]


def test_L22_the_answer_of_a_former_attempt_counts_for_nothing() -> None:
    machine, batches = known(1)
    sent(machine)
    assert machine.lost(A)
    assert not machine.lost(A)
    assert sent(machine, B) == batches
    assert machine.acked(batches[0], 1, 5) == []
    assert machine.failed(batches[0], 1, InvalidProducerEpoch(""))
    assert machine.acked(batches[0], 2, 5) == batches


def test_L22_a_new_leader_gets_nothing_while_the_old_one_owes_answers() -> None:
    machine, batches = known(2)
    assert machine.next(A) is batches[0]
    assert machine.next(B) is None
    machine.lost(A)
    assert machine.next(B) is batches[0]


@pytest.mark.parametrize("error", [InvalidProducerEpoch("fenced"), OutOfOrderSequence("gap")])
def test_L28_a_refusal_that_no_repeat_mends_ends_it(error: MillraceError) -> None:
    machine, batches = known(3)
    sent(machine)
    assert not machine.failed(batches[0], 1, error)
    assert machine.drop_all() == batches
    assert machine.is_empty


def test_sequences_wrap() -> None:
    machine = Inflight(sequence=2**31 - 2)
    assert [machine.add(n, count=3).sequence for n in range(2)] == [2**31 - 2, 1]


# -- against a broker ----------------------------------------------------------------------------------------------


class Request(NamedTuple):
    route: int
    batch: Batch
    attempt: int


class Broker:
    """A log with the broker's own rules; above `hw` a change of leader may cut it."""

    def __init__(self, *, fenced: bool) -> None:
        self.producers = Producers()
        self.log: list[object] = []            # one entry per offset
        self.hw = 0
        self.ends = [0]                        # where batches end
        if fenced:
            self.producers.replay(WRITER, EPOCH, -1, -1, 0, 0, 0, fence=True)
            self.log.append("fence")
            self.hw = 1
            self.ends.append(1)

    def append(self, batch: Batch) -> int:
        found = self.producers.check(WRITER, EPOCH, batch.sequence, batch.count)
        if isinstance(found, Duplicate):
            return found.offset
        base = len(self.log)
        self.log += [(batch.content, n) for n in range(batch.count)]
        self.ends = [end for end in self.ends if end <= base] + [len(self.log)]
        last = advance(batch.sequence, batch.count - 1)
        self.producers.replay(WRITER, EPOCH, batch.sequence, last, base, len(self.log) - 1, 0, fence=False)
        return base

    def commit(self, end: int) -> None:
        self.hw = max(self.hw, end)

    def change_leader(self, cut: int) -> None:
        """`cut` batches are lost, as far as they are not committed."""
        bases = sorted({end for end in self.ends if end < len(self.log)})[-cut:] if cut else []
        end = max(self.hw, bases[0] if bases else len(self.log))
        del self.log[end:]
        assert self.producers.truncated(end)


class World:
    def __init__(self, *, fenced: bool) -> None:
        self.machine = Inflight()
        self.broker = Broker(fenced=fenced)
        self.route = 0
        self.wire: deque[Request] = deque()     # on the present connection, in order
        self.stale: deque[Request] = deque()    # sent on connections we gave up; the broker may still read them
        self.added: list[Batch] = []
        self.done: list[Batch] = []

    def add(self, count: int) -> None:
        self.added.append(self.machine.add(len(self.added), count=count))

    def send(self) -> None:
        batch = self.machine.next(self.route)
        if batch is not None:
            self.wire.append(Request(self.route, batch, batch.attempt))

    def deliver(self, how: str) -> None:
        if not self.wire:
            return
        request = self.wire.popleft()
        batch, attempt = request.batch, request.attempt
        told = self._carry_out(batch, how)
        if isinstance(told, MillraceError):
            assert self.machine.failed(batch, attempt, told), told
            return
        self.broker.commit(told + batch.count)
        self.done += self.machine.acked(batch, attempt, told)

    def _carry_out(self, batch: Batch, how: str) -> int | MillraceError:
        if how == "refused":
            return NotEnoughReplicas("")
        try:
            offset = self.broker.append(batch)
        except OutOfOrderSequence as error:
            return error
        return RequestTimedOut("") if how == "late" else offset

    def deliver_stale(self) -> None:
        if self.stale:
            try:
                self.broker.append(self.stale.popleft().batch)
            except OutOfOrderSequence:
                pass

    def lose(self) -> None:
        self.machine.lost(self.route)
        self.stale += self.wire
        self.wire.clear()
        self.route += 1

    def change_leader(self, cut: int) -> None:
        self.broker.change_leader(cut)
        self.lose()
        self.stale.clear()                      # refused by their leader epoch

    def finish(self) -> None:
        for _ in range(10 * len(self.added) + 10):
            self.send()
            self.deliver("acked")
        assert self.machine.is_empty


steps = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 3)),
    st.tuples(st.just("send")), st.tuples(st.just("send")), st.tuples(st.just("send")),
    st.tuples(st.just("deliver"), st.sampled_from(["acked", "acked", "acked", "refused", "late"])),
    st.tuples(st.just("deliver"), st.just("acked")),
    st.tuples(st.just("deliver_stale")),
    st.tuples(st.just("lose")),
    st.tuples(st.just("change_leader"), st.integers(0, 6)),
)


@settings(max_examples=300, deadline=None)
@given(fenced=st.booleans(), waiting=st.integers(0, 12), run=st.lists(steps, min_size=30, max_size=120))
def test_L22_each_batch_once_in_order_at_the_offset_told(
    fenced: bool, waiting: int, run: list[tuple[object, ...]]
) -> None:
    world = World(fenced=fenced)
    for n in range(waiting):
        world.add(1 + n % 2)
    for name, *arguments in run:
        getattr(world, str(name))(*arguments)
    world.finish()
    assert world.done == world.added
    expected = [(batch.content, n) for batch in world.added for n in range(batch.count)]
    assert [entry for entry in world.broker.log if entry != "fence"] == expected
    for batch in world.added:
        assert world.broker.log[batch.offset] == (batch.content, 0)
