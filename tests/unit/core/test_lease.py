from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core.lease import Lease, check_lease_times, lease_s_max
from millrace.errors import ConfigError


def test_L16_without_an_answer_there_is_no_lease() -> None:
    lease = Lease(4.0)
    lease.sent(10.0)
    assert not lease.valid(10.0)


def test_L16_the_lease_counts_from_the_send_time() -> None:
    lease = Lease(4.0)
    lease.sent(10.0)
    lease.answered(10.0)  # however late the answer came
    assert lease.valid(13.999)
    assert not lease.valid(14.0)


def test_L16_an_older_answer_takes_nothing_back() -> None:
    lease = Lease(4.0)
    lease.sent(10.0)
    lease.sent(11.0)
    lease.answered(11.0)
    lease.answered(10.0)
    assert lease.expires_at == 15.0


def test_L16_a_time_that_was_never_sent_extends_nothing() -> None:
    lease = Lease(4.0)
    lease.sent(10.0)
    lease.answered(99.0)
    assert not lease.valid(10.5)


def test_L16_a_fenced_broker_has_no_lease() -> None:
    lease = Lease(4.0)
    lease.sent(10.0)
    lease.answered(10.0)
    lease.revoked()
    assert not lease.valid(10.1)


def test_L16_the_defaults_are_safe() -> None:
    check_lease_times(limits.LEASE_S, limits.SESSION_S, limits.CLOCK_DRIFT_MAX)


@pytest.mark.parametrize(
    ("lease_s", "session_s", "drift", "named"),
    [
        (6.0, 6.0, 0.0, "lease_s"),
        (5.9, 6.0, 0.01, "lease_s"),
        (0.0, 6.0, 0.01, "lease_s"),
        (4.0, 6.0, 1.0, "clock_drift_max"),
        (4.0, 6.0, -0.1, "clock_drift_max"),
    ],
)
def test_L16_times_that_could_overlap_are_refused(lease_s: float, session_s: float, drift: float, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check_lease_times(lease_s, session_s, drift)


@given(
    st.floats(0.1, 60), st.floats(0, 0.2), st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 5), st.floats(0.01, 0.999)
)
def test_L16_the_lease_ends_before_the_session_on_every_clock(
    session_s: float, drift: float, broker: float, controller: float, delay_s: float, share: float
) -> None:
    """In true time: sent at 0, heard after `delay_s`; each clock runs wrong by up to the drift."""
    lease_s = lease_s_max(session_s, drift) * share
    lease_ends = lease_s / (1 + broker * drift)
    session_ends = delay_s + session_s / (1 + controller * drift)
    assert lease_ends < session_ends
