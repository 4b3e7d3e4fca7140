"""Planted flaws follow their files: each can still be planted, and none stands there twice."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = {"api", "changefeed", "cli", "core", "link", "log", "ops", "pipeline", "sink", "source", "store", "wire"}


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts/mutants.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_every_flaw_can_be_planted(mutants: ModuleType) -> None:
    assert mutants.check(mutants.flaws()) == []


def test_flaws_are_spread_over_all_rooms(mutants: ModuleType) -> None:
    found = mutants.flaws()
    assert len(found) >= 120
    assert {flaw.room for flaw in found} == ROOMS
    assert min(sum(flaw.room == room for flaw in found) for room in ROOMS) >= 5


def test_a_flaw_that_does_not_apply_is_an_error(mutants: ModuleType) -> None:
    flaw = mutants.flaws()[0]
    assert "occurs 0 times" in flaw._replace(old="no such text").wrong()
    assert flaw._replace(file="src/millrace/none.py").wrong() == "src/millrace/none.py is gone"
    assert mutants.check([flaw, flaw._replace(name="another")]) != []


def test_a_share_below_the_goal_is_seen_and_what_a_second_guard_makes_harmless_counts_out(mutants: ModuleType) -> None:
    flaw = mutants.Flaw("log", "one", "f", "a", "b", "t", "")
    told = {flaw: {"found": False}, flaw._replace(name="two"): {"found": True},
            flaw._replace(name="three", guard="the second guard"): {"found": False}}
    page, figures = mutants.report(told)
    assert figures["rooms"]["log"] == {"flaws": 3, "counted_out": 1, "found": 1, "share": 0.5}
    assert "- log: one\n" in page
    assert "- log: three: the second guard" in page
