"""Which floors a changefeed holds, and which of them move."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.feeds.floors import Around, Stream, held, lost, moved_on, moves, settled
from millrace.model.ids import TopicPartition
from millrace.model.positions import PositionKey, StoredPosition, TargetEnd, WriterId

TABLE, COPY, PROGRESS, TARGET, QUARANTINE = (UUID(int=n) for n in range(1, 6))
WRITERS = (WriterId(7, 1),)


def key(topic: UUID, partition: int = 0) -> PositionKey:
    return PositionKey("orders", topic, partition)


def at(offset: int, *ends: TargetEnd, closed: bool = False) -> StoredPosition:
    return StoredPosition(1, offset, 0, ends, WRITERS, closed=closed)


def around(end: int = 1000, *copies: int, is_in: bool = True) -> Around:
    return Around(key(PROGRESS), {key(TABLE): Stream(end, copies)}, {key(COPY): is_in}, QUARANTINE)


def tp(topic: UUID, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


def test_F10_a_position_holds_its_partition_its_targets_and_its_copies() -> None:
    stored = {key(TABLE): at(40, TargetEnd(TARGET, 1, 9), TargetEnd(QUARANTINE, 0, 3)), key(COPY): at(1 << 40),
              key(PROGRESS): at(17, TargetEnd(TARGET, 0, 4), TargetEnd(UUID(int=99), -1, 12))}
    assert held(stored, around(is_in=False)) == {
        tp(TABLE): 40, tp(COPY): 0, tp(PROGRESS): 12, tp(TARGET, 1): 9, tp(TARGET, 0): 4, tp(QUARANTINE): 0}


def test_F10_a_copy_that_is_in_and_a_position_that_is_closed_hold_nothing() -> None:
    stored = {key(COPY): at(5), key(TABLE): at(3, TargetEnd(TARGET, 0, 1), closed=True)}
    assert held(stored, around()) == {}
    assert held({}, around(is_in=False)) == {tp(COPY): 0}, "nobody has begun with it, somebody will"


def test_S5_F10_a_floor_waits_for_windows_and_for_marks_that_nobody_has_read_yet() -> None:
    assert held({key(TABLE): at(40)}, around(1000, 12, 30)) == {tp(TABLE): 12}
    assert held({key(TABLE): at(40)}, around(25)) == {tp(TABLE): 25}, "a low mark may stand behind what we have read"
    assert held({key(TABLE): at(40)}, around(1000, 12), flaws=frozenset({"floor_windows"})) == {tp(TABLE): 40}


def test_F10_what_is_not_known_is_held_whole() -> None:
    """Its numbers may be those of a copy's records, not offsets."""
    assert held({key(UUID(int=77), 2): at(1 << 50)}, around()) == {tp(UUID(int=77), 2): 0}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 50)), max_size=12))
def test_F10_no_floor_is_above_what_any_position_stores(facts: list[tuple[int, int, int]]) -> None:
    stored = {key(TABLE, n): at(next_, TargetEnd(TARGET, part, end))
              for n, (part, next_, end) in enumerate(facts)}
    streams = {one: Stream(100) for one in stored}
    floors = held(stored, Around(key(PROGRESS), streams, {}))
    for one, position in stored.items():
        assert floors[tp(TABLE, one.partition)] <= position.next_offset
        for end in position.ends:
            assert floors[tp(TARGET, end.partition)] <= end.offset


def test_F10_only_what_moved_is_set_and_what_nothing_stands_for_goes_at_the_second_look() -> None:
    standing = {tp(TABLE): 5, tp(COPY): 0, tp(TARGET): 9}
    wanted = {tp(TABLE): 5, tp(TARGET): 12, tp(QUARANTINE): 0}
    first = moves(standing, wanted)
    assert (first.set, first.remove) == ({tp(TARGET): 12, tp(QUARANTINE): 0}, ())
    second = moves(standing, wanted, doubted=first.doubted)
    assert second.remove == (tp(COPY),)
    assert not second.doubted
    assert moves(standing, standing) == ({}, (), frozenset()), "nothing moved: nothing is asked"
    assert moves({tp(TABLE): 5}, {tp(TABLE): 3}).set == {}, "a floor goes back under a greater epoch only"


def test_F10_a_release_that_was_acted_upon_is_forgotten() -> None:
    assert moves({}, {}, released=(tp(TABLE),)).remove == (tp(TABLE),)
    assert moves({}, {tp(TABLE): 3}, released=(tp(TABLE),)).remove == ()


@given(
    st.dictionaries(st.integers(0, 5), st.integers(0, 9)), st.dictionaries(st.integers(0, 5), st.integers(0, 9)),
    st.sets(st.integers(0, 5)))
def test_F10_after_two_looks_what_stands_is_what_is_wanted_and_never_above(
    before: dict[int, int], needs: dict[int, int], doubted: set[int]
) -> None:
    standing = {tp(TABLE, n): offset for n, offset in before.items()}
    wanted = {tp(TABLE, n): offset for n, offset in needs.items()}
    unsure = frozenset(tp(TABLE, n) for n in doubted)
    for _ in range(2):
        found = moves(standing, wanted, doubted=unsure)
        assert all(wanted[one] == offset for one, offset in found.set.items())
        assert not wanted.keys() & set(found.remove)
        standing = {one: o for one, o in {**standing, **found.set}.items() if one not in found.remove}
        unsure = found.doubted
    assert standing.keys() == wanted.keys()
    assert all(standing[one] >= offset for one, offset in wanted.items())


def test_F10_a_floor_moves_to_where_it_could_have_stood_a_look_ago() -> None:
    assert settled({tp(TABLE): 9, tp(COPY): 0, tp(TARGET): 4}, {tp(TABLE): 5, tp(TARGET): 7}) == {
        tp(TABLE): 5, tp(COPY): 0, tp(TARGET): 4}


def test_F10_who_has_moved_on_since_it_was_released_may_have_all_that_it_needs() -> None:
    released = {tp(TABLE): 5, tp(TARGET): 9, tp(COPY): 0}
    assert moved_on({tp(TABLE): 6, tp(TARGET): 9, tp(QUARANTINE): 3}, released) == {tp(TABLE): 6}


def test_F10_what_was_released_or_cut_below_a_position_is_lost() -> None:
    wanted = {tp(TABLE): 5, tp(TARGET): 9, tp(COPY): 0}
    released = {tp(TABLE): "over its budget", tp(QUARANTINE): "x"}
    found = lost(wanted, released=released, gone={tp(COPY): 4, tp(TARGET): 9})
    assert found.keys() == {tp(TABLE), tp(COPY)}
    assert "over its budget" in found[tp(TABLE)]
    assert "begins at 4" in found[tp(COPY)]
