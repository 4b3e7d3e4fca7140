"""Since when there is something to wait for [C9]."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core.feeds.waiting import Waiting


def test_C9_the_first_mark_that_is_not_reached_tells() -> None:
    waiting = Waiting()
    assert waiting.since(0) is None
    for lsn, now in ((100, 10.0), (200, 20.0), (300, 30.0)):
        waiting.marked(lsn, now)
    assert [waiting.since(done) for done in (99, 100, 199, 200, 299, 300)] == [10.0, 20.0, 20.0, 30.0, 30.0, None]
    waiting.reached(250)
    assert [waiting.since(done) for done in (0, 300)] == [30.0, None]
    waiting.marked(300, 90.0)
    assert waiting.since(300) is None, "a mark that says nothing new is nothing to wait for"
    waiting.marked(301, 100.0)
    assert waiting.since(300) == 100.0


def test_C9_marks_that_come_together_are_one_and_the_last_of_them_counts() -> None:
    waiting = Waiting()
    for n in range(50):
        waiting.marked(100 + n, 10.0 + n * limits.WAIT_MARK_S / 100)
    assert (waiting.since(148), waiting.since(149)) == (10.0, None)


def test_C9_another_history_begins_anew() -> None:
    waiting = Waiting()
    waiting.marked(900, 10.0)
    waiting.marked(5, 70.0)
    assert (waiting.since(4), waiting.since(5)) == (70.0, None)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.0, 5.0)), min_size=1, max_size=200), st.data())
def test_C9_never_too_late_and_too_early_by_little(steps: list[tuple[int, float]], data: st.DataObject) -> None:
    waiting, lsn, now, marks = Waiting(), 0, 0.0, list[tuple[int, float]]()
    for more, later in steps:
        lsn, now = lsn + more, now + later
        waiting.marked(lsn, now)
        marks.append((lsn, now))
    done = data.draw(st.integers(0, lsn - 1))
    true = next(at for mark, at in marks if mark > done)
    found = waiting.since(done)
    assert found is not None
    assert true - limits.WAIT_MARK_S < found <= true


def test_C9_memory_is_bounded_and_nothing_that_waits_is_forgotten() -> None:
    waiting = Waiting()
    for n in range(3 * limits.WAIT_MARKS_MAX):
        waiting.marked(n + 1, float(n))
        assert waiting.since(n) is not None
    assert len(waiting._marks) <= limits.WAIT_MARKS_MAX
    assert waiting.since(0) == 0.0
