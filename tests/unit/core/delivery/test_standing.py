"""What the parts of a dispatcher say of it, and what is told after a round."""

from __future__ import annotations

import pytest

from millrace.core.delivery.standing import Over, Standing, round_over, stands
from millrace.core.delivery.takeover_asks import Why


def test_V11_the_worst_part_speaks() -> None:
    assert stands([(None, ""), (None, "")]).standing is Standing.WORKING
    found = stands([(Why.MISSING, "no position"), (None, ""), (Why.AGAIN, "moved")])
    assert (found.standing, found.why, found.detail) == (Standing.GONE, Why.AGAIN, "moved")
    assert stands([(Why.AGAIN, "a"), (Why.SUPERSEDED, "s")]).why is Why.SUPERSEDED
    assert stands([(Why.STOPPED, ""), (Why.CANNOT_PROVE, "gone")]).standing is Standing.LASTING
    assert stands([(Why.STOPPED, ""), (None, "")]).standing is Standing.STOPPED


def test_V11_every_reason_has_a_standing() -> None:
    assert {stands([(why, "")]).standing for why in Why} == {Standing.STOPPED, Standing.LASTING, Standing.GONE}


@pytest.mark.parametrize(("standing", "stopped", "failed", "over"), [
    (Standing.WORKING, False, False, Over.COMMITTED),
    (Standing.WORKING, False, True, Over.FAILED),
    (Standing.GONE, False, True, Over.UNKNOWN),
    (Standing.GONE, False, False, Over.UNKNOWN),
    (Standing.GONE, True, True, Over.COMMITTED),
    (Standing.STOPPED, True, False, Over.COMMITTED),
    (Standing.LASTING, False, True, Over.FAILED),
])
def test_P5_after_a_round(standing: Standing, stopped: bool, failed: bool, over: Over) -> None:
    assert round_over(standing, stopped=stopped, failed=failed) is over
