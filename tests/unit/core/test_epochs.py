from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.epochs import EpochCache


def cache_of(epochs: list[int], start: int = 0) -> EpochCache:
    """From a log written as the epoch of each batch of one record."""
    cache = EpochCache()
    for offset, epoch in enumerate(epochs, start):
        cache.appended(epoch, offset)
    return cache


def end_by_scan(epochs: list[int], epoch: int) -> tuple[int, int]:
    below = [(e, offset + 1) for offset, e in enumerate(epochs) if e <= epoch]
    return below[-1] if below else (epoch, 0)


logs = st.lists(st.integers(0, 6), max_size=30).map(sorted)


def test_L14_only_epochs_with_batches_have_entries() -> None:
    assert cache_of([0, 0, 3, 3, 5]).entries == [(0, 0), (3, 2), (5, 4)]


def test_L14_end_of_the_last_epoch_is_the_log_end() -> None:
    assert cache_of([0, 0, 3]).end_of(3, 3) == (3, 3)


def test_L14_end_of_an_epoch_above_the_last_is_the_log_end_of_the_last() -> None:
    assert cache_of([0, 0, 3]).end_of(9, 3) == (3, 3)


def test_L14_end_of_an_unknown_epoch_is_that_of_the_next_lower() -> None:
    assert cache_of([0, 0, 3]).end_of(2, 3) == (0, 2)


def test_L14_below_a_removed_front_the_asker_keeps_what_lies_below_the_first_known() -> None:
    cache = cache_of([0, 0, 3, 3])
    cache.log_started(3)
    assert cache.entries == [(3, 3)]
    assert cache.end_of(0, 4) == (0, 3)


def test_L14_an_empty_log_ends_where_it_starts() -> None:
    assert EpochCache().end_of(4, 7) == (-1, 7)
    assert EpochCache().latest() == -1
    assert EpochCache().epoch_before(7) == -1


def test_the_last_epoch_survives_its_batches() -> None:
    cache = cache_of([0, 2, 2])
    cache.log_started(3)
    assert (cache.latest(), cache.epoch_before(3)) == (2, -1)
    cache.appended(4, 3)
    assert cache.entries == [(4, 3)]


@given(logs, st.integers(-1, 8))
def test_L14_end_of_equals_a_scan_of_the_log(epochs: list[int], epoch: int) -> None:
    cache = cache_of(epochs)
    expected = end_by_scan(epochs, epoch) if epochs else (-1, 0)
    assert cache.end_of(epoch, len(epochs)) == expected


@given(logs, st.data())
def test_L14_truncation_equals_a_rebuild(epochs: list[int], data: st.DataObject) -> None:
    to = data.draw(st.integers(0, len(epochs)))
    cache = cache_of(epochs)
    cache.truncated(to)
    assert cache.entries == cache_of(epochs[:to]).entries


@given(logs.filter(bool), st.data())
def test_log_start_equals_a_rebuild(epochs: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(epochs) - 1))
    cache = cache_of(epochs)
    cache.log_started(start)
    assert cache.entries == cache_of(epochs[start:], start).entries


@given(logs.filter(bool), st.data())
def test_the_epoch_before_an_offset_is_of_the_batch_ending_there(epochs: list[int], data: st.DataObject) -> None:
    offset = data.draw(st.integers(1, len(epochs)))
    assert cache_of(epochs).epoch_before(offset) == epochs[offset - 1]
