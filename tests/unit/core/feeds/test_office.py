from __future__ import annotations

from millrace.core.feeds.office import FeedState
from millrace.model import changefeeds as records
from millrace.model.spans import Place, TableId, split, whole

T, U = TableId("shop", 1), TableId("shop", 2)


def state(*more: records.FeedRecords) -> FeedState:
    s = FeedState()
    for record in (records.SpanRecorded(0, whole(T, 2)), records.SpanRecorded(1, whole(U, 1), 4), *more):
        s.replay(record)
    return s


def test_V9_the_counter_is_at_or_above_every_epoch_given_out() -> None:
    s = state(records.EpochsTaken(5), records.SpanPlaced(0, Place(1, 1, 9)), records.EpochsTaken(7))
    assert s.epoch == 9


def test_C2_indexes_follow_the_places() -> None:
    s = state(records.SpanPlaced(0, Place(1, 1, 2)), records.SpanPlaced(0, Place(2, 1, 3)))
    assert {capture: list(here) for capture, here in s.by_capture.items()} == {1: [], 2: [0]}
    s.replay(records.SpanEnded(0))
    assert s.by_capture[2] == {}
    assert list(s.by_table) == [U]


def test_C4_split_spans_are_absent_keep_their_birth_and_get_fresh_ids() -> None:
    s = state(records.SpanPlaced(1, Place(1, 1, 2)))
    one, two = split(whole(T, 2))
    s.replay(records.SpansReplaced((0,), ((2, one), (3, two))))
    assert sorted(s.spans) == [1, 2, 3]
    assert {s.spans[i].born for i in (2, 3)} == {records.FIRST}
    assert s.spans[2].place is None
    assert s.next_id == 4
    s.replay(records.SpansReplaced((1,), ((4, whole(U, 1)),)))
    assert s.spans[4].born == 4


def test_C7_a_table_is_known_while_it_has_spans_and_after_it_ended() -> None:
    s = state(records.TableEnds(U, 8), records.SpanEnded(1))
    assert s.knows(T)
    assert s.knows(U)
    assert not s.knows(TableId("shop", 3))


def test_C7_an_end_is_over_when_the_table_is_recorded_again_behind_it_or_when_it_is_taken_back() -> None:
    over = (records.TableEnds(U, 8), records.SpanEnded(1))
    assert state(*over, records.SpanRecorded(2, whole(U, 1), 9)).ends == {}, "it was renamed away and back"
    assert state(*over, records.SpanRecorded(2, whole(U, 1), 4)).ends == {U: 8}, "going back: its end is to come"
    assert state(records.TableEnds(U, 8), records.TableEnds(U, records.STAYS)).ends == {}
    left = (records.TableEnds(U, records.LEFT), records.SpanEnded(1))
    assert state(*left, records.SpanRecorded(2, whole(U, 1))).ends == {}


def test_C8_troubles_and_checkpoint_stand() -> None:
    error = records.FeedError(code="schema_refused", kind="isolate", table=U)
    s = state(records.TableTrouble(U, error), records.CheckpointReached(44), records.FeedBegun())
    assert (s.troubles, s.checkpoint, s.begun) == ({U: error}, 44, True)
    s.replay(records.TableTrouble(U, None))
    assert not s.troubles
