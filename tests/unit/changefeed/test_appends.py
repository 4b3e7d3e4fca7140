"""Many records become appends that a store takes, in order, none lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.changefeed.appends import in_appends
from millrace.store import rules


@given(st.lists(st.integers(1, limits.STORE_APPEND_BYTES_MAX // 3), max_size=20), st.integers(0, 5_000))
def test_L18_every_append_fits_and_together_they_are_all(sizes: list[int], small: int) -> None:
    records = [bytes(size) for size in sizes] + [b"x"] * small
    runs = list(in_appends(records))
    for run in runs:
        assert run
        rules.check_records(run)
    assert [record for run in runs for record in run] == records
    assert len(runs) <= 1 + sum(sizes) // (limits.STORE_APPEND_BYTES_MAX // 2) + small // 1_000
