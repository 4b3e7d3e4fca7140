"""Random histories on a disk that forgets: after any crash the log is one it may be.

Appends small and large, truncation, rolls, sync rounds, catching up, restarts, deletions and retention of three logs,
with failing syncs, and the process killed or the power cut at any file call, again and again.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support_crash_history import LOGS, Life, run

logs_ = st.integers(0, LOGS - 1)
share = st.floats(0, 0.999)
operation = st.one_of(
    st.tuples(st.just("append"), logs_, st.integers(50, 1_200), st.integers(0, 255)),
    st.tuples(st.just("append"), logs_, st.integers(1_600, 9_000), st.integers(0, 255)),
    st.tuples(st.just("truncate"), logs_, share),
    st.tuples(st.just("begin_round")),
    st.tuples(st.just("end_round")),
    st.tuples(st.just("catch_up")),
    st.tuples(st.just("begin_catch_up")),
    st.tuples(st.just("end_catch_up")),
    st.tuples(st.just("roll"), logs_),
    st.tuples(st.just("remember_hw"), logs_, share),
    st.tuples(st.just("restart"), logs_, share),
    st.tuples(st.just("retain"), logs_, share),
    st.tuples(st.just("delete"), logs_),
)
life = st.builds(
    Life, st.lists(operation, max_size=25), power=st.booleans(), in_last=st.integers(0, 12),
    in_recovery=st.integers(0, 30), after=st.booleans(), failures=st.integers(0, 4),
)


@given(st.integers(0, 1 << 30), st.booleans(), st.lists(life, min_size=1, max_size=4))
@settings(max_examples=150)
def test_L11_what_was_durable_survives_any_crash_and_nothing_is_mixed(
    seed: int, scatter: bool, lives: list[Life]
) -> None:
    run(seed, scatter=scatter, lives=lives)


@pytest.mark.long
@given(st.integers(0, 1 << 30), st.booleans(), st.lists(life, min_size=1, max_size=6))
@settings(max_examples=20_000)
def test_L11_what_was_durable_survives_any_crash_at_length(seed: int, scatter: bool, lives: list[Life]) -> None:
    run(seed, scatter=scatter, lives=lives)
