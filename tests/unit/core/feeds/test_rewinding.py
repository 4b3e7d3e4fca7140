"""A changefeed goes on from another position: once, whoever dies on the way, and only where the log has it [C4, C6]."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.delivery.source_marks import At
from millrace.core.feeds import rewinding
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.feeds.office import FeedState
from millrace.core.feeds.source_story import Told
from millrace.errors import PositionRefused
from millrace.model.changefeeds import (
    BEGINNING,
    ChangefeedSpec,
    CheckpointReached,
    EpochsTaken,
    FeedRewound,
    SpanPlaced,
    SpanRecorded,
    SpecSettled,
)
from millrace.model.progress import Change, Mark
from millrace.model.spans import Place, TableId, whole
from millrace.model.tables import TableSchema

SPEC = ChangefeedSpec(id="orders", source="shop", sink="kafka:")
T = TableSchema(1, "public", "t", "d", ())


def test_C4_a_wish_is_due_until_it_is_recorded_as_done() -> None:
    state, entry = FeedState(epoch=7), FeedEntry(SPEC, 1)
    assert rewinding.due(state, entry) is None
    entry.position, entry.rewinds = 400, 1
    rewind = rewinding.due(state, entry)
    assert rewind is not None
    assert (rewind.position, rewind.epoch, rewind.done) == (400, 8, FeedRewound(1, 400))
    state.replay(rewind.begun)
    again = rewinding.due(state, entry)                      # whoever did it died on the way
    assert again is not None
    assert again.epoch == 9
    state.replay(again.done)
    assert rewinding.due(state, entry) is None
    entry.position, entry.rewinds = BEGINNING, 2
    last = rewinding.due(state, entry)
    assert last is not None
    assert (last.position, last.done) == (BEGINNING, FeedRewound(2, 0))


def test_C6_a_rewound_changefeed_has_nobody_placed_and_its_tables_are_to_be_settled() -> None:
    state = FeedState()
    for record in (SpanRecorded(0, whole(TableId("shop", 1), 2)), SpanPlaced(0, Place(1, 1, 5)), SpecSettled(SPEC),
                   CheckpointReached(900), FeedRewound(1, 400)):
        state.replay(record)
    assert (state.checkpoint, state.rewinds, state.spec, state.epoch) == (400, 1, None, 5)
    assert [span.place for span in state.spans.values()] == [None]
    assert not any(state.by_capture.values())


@given(st.lists(st.sampled_from(["wish", "begin", "done", "work"]), max_size=30))
def test_C4_each_wish_is_done_at_most_once_and_the_last_one_is_done_at_last(steps: list[str]) -> None:
    state, entry, done, under_way = FeedState(), FeedEntry(SPEC, 1), list[int](), None
    for step in (*steps, "begin", "done"):
        if step == "wish":
            entry.rewinds += 1
            entry.position = 100 + entry.rewinds
        elif step == "work":
            state.replay(EpochsTaken(state.epoch + 1))
            under_way = None                                 # a maintainer works only if nothing is due
        elif step == "begin" and (rewind := rewinding.due(state, entry)) is not None:
            assert rewind.epoch > state.epoch, "nobody who was placed before has it"
            state.replay(rewind.begun)
            under_way = rewind
        elif step == "done" and under_way is not None:
            state.replay(under_way.done)
            done.append(under_way.done.rewind)
            under_way = None
    assert done == sorted(set(done))
    assert state.rewinds == entry.rewinds
    assert state.checkpoint == (100 + entry.rewinds if entry.rewinds else 0)


def reach(*marks: tuple[int, int]) -> rewinding.Reach:
    found = rewinding.Reach()
    for generation, resolved in marks:
        found.replay(Mark(generation, resolved, "s", 1, True, ()))
    return found


def test_a_position_is_refused_where_the_log_does_not_have_it_and_what_to_give_is_told() -> None:
    found = reach((1, 1000), (1, 2000))
    assert found.at(1000) == At(1, 1000)
    assert found.at(2000) == At(1, 2000)
    assert found.at(BEGINNING) is None
    with pytest.raises(PositionRefused, match=r"0/3E7 is before 0/3E8.*or `beginning`"):
        found.at(999)
    with pytest.raises(PositionRefused, match=r"0/7D1 is ahead of 0/7D0.*or `now`"):
        found.at(2001)
    with pytest.raises(PositionRefused, match="no mark yet"):
        reach().at(5)


def test_S9_a_position_means_the_present_generation() -> None:
    found = reach((1, 1000), (1, 5000), (2, 3000), (1, 6000), (2, 3500))
    assert found.at(3200) == At(2, 3200)
    with pytest.raises(PositionRefused, match="before 0/BB8"):
        found.at(2000)


def test_C7_changes_up_to_the_position_have_passed_there() -> None:
    told = [Told(number, "alter", T, Change(1, 1, lsn, 0, "alter"), {}) for number, lsn in ((4, 10), (9, 20), (12, 30))]
    assert [rewinding.next_change(told, At(1, lsn), 40) for lsn in (9, 10, 19, 20, 30)] == [4, 9, 9, 12, 40]


def test_F10_a_position_behind_which_the_log_was_released_is_refused() -> None:
    at = At(1, 1000)
    rewinding.refuse_unless_whole(T, at, marked=7, start=3, found=9)
    rewinding.refuse_unless_whole(T, at, marked=3, start=3, found=3)
    rewinding.refuse_unless_whole(T, at, marked=3, start=7, found=8)         # what stands at 7 is not behind it
    with pytest.raises(PositionRefused, match=r"public.t: what was committed right after 0/3E8 is not in the log"):
        rewinding.refuse_unless_whole(T, at, marked=3, start=7, found=7)
