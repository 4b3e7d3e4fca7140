"""Candidate and holder of an office, in time [L18]."""

from __future__ import annotations

import pytest

from millrace.core.tenure import Tenure


@pytest.fixture
def tenure() -> Tenure:
    return Tenure(tenure_s=2.0, renew_s=0.5, drift=0.01)


def test_L18_the_lease_counts_from_the_send_time_and_ends_before_the_stores(tenure: Tenure) -> None:
    tenure.won(10.0, 1)
    assert tenure.valid(11.9)
    assert not tenure.valid(10.0 + 2.0 * 0.99 / 1.01)
    assert tenure.left_s(11.0) == pytest.approx(2.0 * 0.99 / 1.01 - 1.0)


def test_L18_renewal_is_due_well_before_the_end(tenure: Tenure) -> None:
    tenure.won(10.0, 1)
    assert not tenure.due(10.4)
    assert tenure.wait_s(10.4) == pytest.approx(0.1)
    assert tenure.due(10.5)
    tenure.renewed(10.5)
    assert tenure.valid(12.4)
    assert not tenure.due(10.9)


def test_L18_answers_out_of_order_take_nothing_back(tenure: Tenure) -> None:
    tenure.won(10.0, 1)
    tenure.renewed(11.0)
    tenure.renewed(10.5)
    assert tenure.valid(12.9)


def test_L18_no_answer_is_tried_again_until_the_end(tenure: Tenure) -> None:
    tenure.won(10.0, 1)
    tenure.renew_failed(10.6)
    assert tenure.due(10.85)
    tenure.renew_failed(11.9)
    assert tenure.due(11.97), "at the end of the lease, to step down"


def test_L18_whoever_lost_the_office_is_a_candidate_again(tenure: Tenure) -> None:
    tenure.won(10.0, 3)
    tenure.lost(11.0, again_in_s=0.2)
    assert not tenure.valid(11.0)
    assert tenure.left_s(11.0) == 0.0
    tenure.renewed(11.0)
    assert not tenure.valid(11.0), "a late answer does not bring it back"
    assert not tenure.due(11.1)
    assert tenure.due(11.2)
    tenure.won(11.3, 4)
    assert tenure.valid(11.4)
    assert tenure.token == 4


def test_L18_a_hint_makes_a_candidate_look_at_once(tenure: Tenure) -> None:
    tenure.held_by_other(10.0, again_in_s=5.0)
    assert not tenure.due(11.0)
    tenure.hint(11.0)
    assert tenure.due(11.0)
    tenure.won(11.0, 1)
    tenure.hint(11.1)
    assert not tenure.due(11.1), "a holder has nothing to look for"


def test_L18_tokens_only_grow(tenure: Tenure) -> None:
    tenure.won(1.0, 5)
    tenure.lost(2.0, again_in_s=0.0)
    with pytest.raises(AssertionError):
        tenure.won(3.0, 5)
