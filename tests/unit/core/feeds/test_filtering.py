"""Changes under a filter [P4]."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.feeds.filtering import Op, Outcome, Verdict, outcome

IN, OUT, UNKNOWN = Verdict.IN, Verdict.OUT, Verdict.UNKNOWN


def test_P4_an_update_that_leaves_is_a_delete_and_one_that_enters_an_insert() -> None:
    assert outcome(Op.UPDATE, IN, IN) == Outcome.UPDATE
    assert outcome(Op.UPDATE, IN, OUT) == Outcome.DELETE
    assert outcome(Op.UPDATE, OUT, IN) == Outcome.INSERT
    assert outcome(Op.UPDATE, OUT, OUT) == Outcome.NOTHING


def test_P4_where_only_the_key_is_known_nothing_stays_behind() -> None:
    assert outcome(Op.UPDATE, UNKNOWN, IN) == Outcome.UPDATE
    assert outcome(Op.UPDATE, UNKNOWN, OUT) == Outcome.DELETE
    assert outcome(Op.DELETE, UNKNOWN, OUT) == Outcome.DELETE


def test_P4_what_was_not_sent_cannot_be_judged() -> None:
    assert outcome(Op.INSERT, OUT, UNKNOWN) == Outcome.REFUSED
    for before in Verdict:
        assert outcome(Op.UPDATE, before, UNKNOWN) == Outcome.REFUSED


@given(st.lists(st.tuples(st.integers(0, 2), st.none() | st.booleans()), max_size=30), st.booleans())
def test_P4_the_sink_ends_with_the_rows_that_the_filter_takes(steps: list[tuple[int, bool | None]], full: bool) -> None:
    """Rows of three keys, in or out of the filter; the sink keeps what it is told. None: deleted."""
    rows: dict[int, bool] = {}
    sink: set[int] = set()
    for key, state in steps:
        was = rows.get(key)
        if state is None and was is None:
            continue
        op = Op.DELETE if state is None else Op.INSERT if was is None else Op.UPDATE
        before = (IN if was else OUT) if full and was is not None else UNKNOWN
        told = outcome(op, before, IN if state else OUT)
        if told == Outcome.INSERT:
            assert key not in sink
        if told in (Outcome.UPDATE, Outcome.DELETE) and full:
            assert key in sink, "with whole images nothing is told of rows that the sink does not have"
        if told in (Outcome.INSERT, Outcome.UPDATE):
            sink.add(key)
        elif told == Outcome.DELETE:
            sink.discard(key)
        rows.pop(key, None)
        if state is not None:
            rows[key] = state
    assert sink == {key for key, taken in rows.items() if taken}
