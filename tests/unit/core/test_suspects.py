"""A broken link makes clients look again for a moment; it decides nothing."""

from __future__ import annotations

from millrace.core.suspects import Suspects
from millrace.limits import SUSPECT_S


def test_L17_a_broken_link_is_suspicion_for_a_moment_only() -> None:
    suspects = Suspects()
    assert suspects.at(1.0) == frozenset()
    suspects.lost(2, 1.0)
    assert suspects.at(1.0 + SUSPECT_S / 2) == {2}
    assert suspects.at(1.0 + SUSPECT_S) == frozenset()


def test_a_link_that_is_back_clears_it() -> None:
    suspects = Suspects()
    suspects.lost(2, 1.0)
    suspects.back(2)
    assert suspects.at(1.1) == frozenset()
