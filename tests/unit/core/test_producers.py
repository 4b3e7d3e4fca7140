from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.core import producers as module
from millrace.core.producers import PRODUCER_EXPIRY_MS, SEQUENCE_MAX, Duplicate, Producers
from millrace.errors import InvalidProducerEpoch, NewerFormat, OutOfOrderSequence

DAY_MS = PRODUCER_EXPIRY_MS


class Batch(msgspec.Struct, frozen=True):
    producer_id: int
    epoch: int
    first: int
    count: int = 1
    fence: bool = False
    timestamp_ms: int = 0


class Log:
    """A log of batches with the producers derived from it."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, Batch]] = []
        self.end = 0
        self.producers = Producers()

    def write(self, batch: Batch) -> int:
        offset = self.end
        replay(self.producers, offset, batch)
        self.batches.append((offset, batch))
        self.end += batch.count
        return offset

    def send(self, batch: Batch) -> Duplicate | int:
        if batch.fence:
            known = self.producers.check_fence(batch.producer_id, batch.epoch)
            return self.write(batch) if known is None else Duplicate(known)
        repeat = self.producers.check(batch.producer_id, batch.epoch, batch.first, batch.count)
        return self.write(batch) if repeat is None else repeat

    def cut(self, to: int) -> bool:
        self.batches = [(offset, batch) for offset, batch in self.batches if offset < to]
        self.end = to
        return self.producers.truncated(to)


def replay(producers: Producers, offset: int, b: Batch) -> None:
    last = -1 if b.fence else (b.first + b.count - 1) & SEQUENCE_MAX
    producers.replay(
        b.producer_id, b.epoch, b.first, last, offset, offset + b.count - 1, b.timestamp_ms, fence=b.fence
    )


def rebuilt(batches: list[tuple[int, Batch]]) -> Producers:
    producers = Producers()
    for offset, batch in batches:
        replay(producers, offset, batch)
    return producers


def test_L20_a_batch_without_a_producer_is_never_judged() -> None:
    assert Producers().check(-1, -1, -1, 3) is None


def test_L20_an_unknown_producer_may_start_anywhere_then_must_follow() -> None:
    log = Log()
    assert log.send(Batch(7, 0, 40, 2)) == 0
    assert log.send(Batch(7, 0, 42)) == 2
    with pytest.raises(OutOfOrderSequence):
        log.send(Batch(7, 0, 44))


def test_L20_a_repeat_of_the_last_five_batches_gets_its_original_offset() -> None:
    log = Log()
    for sequence in range(0, 14, 2):
        log.send(Batch(7, 0, sequence, 2))
    for sequence in range(4, 14, 2):
        assert log.send(Batch(7, 0, sequence, 2)) == Duplicate(sequence)
    with pytest.raises(OutOfOrderSequence):
        log.send(Batch(7, 0, 2, 2))
    with pytest.raises(OutOfOrderSequence):
        log.send(Batch(7, 0, 4, 3))  # same start, another batch


def test_L20_sequences_wrap_to_zero() -> None:
    log = Log()
    log.send(Batch(7, 0, SEQUENCE_MAX - 1, 3))  # ends with sequence 0
    assert log.send(Batch(7, 0, 1)) == 3
    assert log.send(Batch(7, 0, SEQUENCE_MAX - 1, 3)) == Duplicate(0)


def test_L20_a_higher_epoch_starts_at_zero_and_a_lower_one_is_refused() -> None:
    log = Log()
    log.send(Batch(7, 0, 5))
    with pytest.raises(OutOfOrderSequence):
        log.send(Batch(7, 1, 6))
    log.send(Batch(7, 1, 0))
    with pytest.raises(InvalidProducerEpoch):
        log.send(Batch(7, 0, 6))


@pytest.mark.parametrize(("epoch", "sequence"), [(0, -1), (-1, 0)])
def test_L20_a_producer_without_epoch_or_sequence_is_refused(epoch: int, sequence: int) -> None:
    with pytest.raises(OutOfOrderSequence):
        Producers().check(7, epoch, sequence, 1)


def test_L28_after_a_fence_lower_epochs_are_refused() -> None:
    log = Log()
    log.send(Batch(7, 1, -1, fence=True))
    log.send(Batch(7, 1, 0))
    log.send(Batch(7, 2, -1, fence=True))
    with pytest.raises(InvalidProducerEpoch):
        log.send(Batch(7, 1, 1))
    with pytest.raises(InvalidProducerEpoch):
        log.send(Batch(7, 1, -1, fence=True))


def test_L28_a_fence_of_the_present_epoch_changes_nothing_and_returns_the_first() -> None:
    log = Log()
    first = log.send(Batch(7, 1, -1, fence=True))
    log.send(Batch(7, 1, 0))
    assert log.send(Batch(7, 1, -1, fence=True)) == Duplicate(0)
    assert first == 0
    assert log.send(Batch(7, 1, 1)) == 2


def test_L28_sequences_count_from_zero_after_each_fence_and_a_gap_is_refused() -> None:
    log = Log()
    log.send(Batch(7, 1, -1, fence=True))
    with pytest.raises(OutOfOrderSequence):
        log.send(Batch(7, 1, 1))
    log.send(Batch(7, 1, 0))
    log.send(Batch(7, 2, -1, fence=True))
    with pytest.raises(OutOfOrderSequence):
        log.send(Batch(7, 2, 1))
    log.send(Batch(7, 2, 0))


def test_L28_only_a_fence_raises_the_epoch_of_a_writer() -> None:
    log = Log()
    log.send(Batch(7, 1, -1, fence=True))
    with pytest.raises(InvalidProducerEpoch):
        log.send(Batch(7, 2, 0))


def test_L28_a_plain_producer_becomes_a_writer_by_its_first_fence() -> None:
    log = Log()
    log.send(Batch(7, 1, 5))
    assert log.send(Batch(7, 1, -1, fence=True)) == 1
    assert log.send(Batch(7, 1, 0)) == 2


def test_L28_writers_never_expire_plain_producers_do() -> None:
    log = Log()
    log.send(Batch(7, 1, -1, fence=True, timestamp_ms=0))
    log.send(Batch(8, 0, 5, timestamp_ms=0))
    log.send(Batch(9, 0, 5, timestamp_ms=DAY_MS))
    assert log.producers.expire(DAY_MS + 1) == 1
    assert sorted(log.producers.by_id) == [7, 9]
    assert log.send(Batch(8, 0, 99)) == 3  # unknown again: may start anywhere


def test_L28_a_snapshot_survives_a_restart() -> None:
    log = Log()
    log.send(Batch(7, 1, -1, fence=True))
    log.send(Batch(7, 1, 0))
    log.send(Batch(8, 0, 5, 2))
    again = Producers.restore(log.producers.snapshot())
    assert (again.by_id, again.end) == (log.producers.by_id, 4)
    assert again.check(8, 0, 5, 2) == Duplicate(2)


def test_L19_a_newer_snapshot_format_is_refused() -> None:
    blob = msgspec.msgpack.encode([module.FORMAT + 1, "whatever"])
    with pytest.raises(NewerFormat, match="format 2"):
        Producers.restore(blob)


def test_L14_truncation_below_a_snapshot_asks_for_a_rebuild_and_changes_nothing() -> None:
    log = Log()
    log.send(Batch(7, 0, 0))
    log.send(Batch(7, 0, 1))
    restored = Producers.restore(log.producers.snapshot())
    before = dict(restored.by_id)
    assert restored.truncated(2)
    assert not restored.truncated(1)
    assert restored.by_id == before


def test_L14_truncation_below_what_settled_asks_for_a_rebuild() -> None:
    log = Log()
    for sequence in range(4):
        log.send(Batch(7, 0, sequence))
    log.producers.settled(2)
    assert not log.producers.truncated(1)
    assert log.cut(2)
    assert log.producers.by_id == rebuilt(log.batches).by_id


def test_undo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNDO_MAX", 3)
    log = Log()
    for sequence in range(5):
        log.send(Batch(7, 0, sequence))
    assert not log.producers.truncated(1)
    assert log.cut(2)
    assert log.producers.by_id == rebuilt(log.batches).by_id


def test_the_removed_front_of_a_log_takes_no_producer_with_it() -> None:
    log = Log()
    log.send(Batch(7, 0, 0))
    log.send(Batch(-1, -1, -1, 9))
    log.producers.log_started(10)
    assert log.send(Batch(7, 0, 0)) == Duplicate(0)


class ProducersAgainstRebuild(RuleBasedStateMachine):
    """[L14, L20, L28] However a log is written and cut, its producers are what replaying it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.hw = 0

    @rule(
        producer_id=st.integers(-1, 2), epoch=st.integers(0, 3), first=st.integers(0, 6), count=st.integers(1, 2),
        fence=st.booleans(),
    )
    def send(self, producer_id: int, epoch: int, first: int, count: int, fence: bool) -> None:
        fence = fence and producer_id >= 0
        batch = Batch(producer_id, epoch, -1 if fence else first, 1 if fence else count, fence)
        before = dict(self.log.producers.by_id)
        try:
            self.log.send(batch)
        except (InvalidProducerEpoch, OutOfOrderSequence):
            assert self.log.producers.by_id == before

    @rule(producer_id=st.integers(0, 2), count=st.integers(1, 3))
    def follow(self, producer_id: int, count: int) -> None:
        """What a well-behaved producer sends next."""
        known = self.log.producers.by_id.get(producer_id)
        if known is not None:
            first = known.batches[-1].last_sequence + 1 if known.batches else 0
            assert self.log.send(Batch(producer_id, known.epoch, first, count)) == self.log.end - count

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        self.hw += int((self.log.end - self.hw) * share)
        self.log.producers.settled(self.hw)

    @precondition(lambda self: self.log.end > self.hw)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        places = [offset for offset, _ in self.log.batches if offset >= self.hw]
        if places:
            assert self.log.cut(data.draw(st.sampled_from(places)))

    @rule()
    def restart(self) -> None:
        self.log.producers = Producers.restore(self.log.producers.snapshot())
        self.hw = self.log.end

    @invariant()
    def equals_a_rebuild(self) -> None:
        assert self.log.producers.by_id == rebuilt(self.log.batches).by_id


TestProducersAgainstRebuild = ProducersAgainstRebuild.TestCase
TestProducersAgainstRebuild.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=20), st.integers(0, 20))
def test_L14_a_deep_cut_without_settling_is_exact(sends: list[tuple[int, int]], to: int) -> None:
    log = Log()
    for producer_id, epoch in sends:
        try:
            log.send(Batch(producer_id, epoch, -1, fence=True))
        except InvalidProducerEpoch:
            continue
    assert log.cut(min(to, log.end))
    assert log.producers.by_id == rebuilt(log.batches).by_id
