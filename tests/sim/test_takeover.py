"""Dispatchers that write to topics of our own log, in hundreds of small worlds [V11, K3, K5, P2, P3, P5, P9, L28, F10],
and the proof that a flaw would be seen.

More seeds: `.venv/bin/python -m millrace_sim.takeover --seeds 2000 --jobs 2`. A failed seed prints its own command.
"""

from __future__ import annotations

import pytest

from millrace_sim.takeover.run import BULK
from support_bulk import SeedTests, is_found, violations

SEEDS = 500
CHUNK = 25  # seeds of one test, so that they spread over the cores

# Seeds 0, 1, 2… until a violation: each flaw must be found within so many.
FOUND_WITHIN = {
    "acks_all": 60, "claim": 60, "commit_epoch": 20, "commit_from": 30, "doubt": 40, "ends_first": 20, "ends_grow": 30,
    "fence": 20, "fence_once": 80, "fence_survives": 20, "fenced_targets": 150, "floor": 20, "hold": 20,
    "keep_ends": 20, "one_counter": 20, "one_round": 60, "prefix": 20, "quarantine_fenced": 20, "quarantine_first": 30,
    "refresh": 20, "refresh_found": 40, "scan": 20, "scan_by_writer": 20, "sequence": 20, "skip_exact": 30,
    "take_epoch": 20, "target_floor": 20, "unknown_fences": 20, "whole_list": 80, "writer_per_partition": 20,
}
FOUND_WITHIN_LONG = {"fence_at_hw": 800, "former_writers": 600}

# Switched off, these break no promise in this world; why each is kept all the same:
HARMLESS = {
    "epoch_seen": "whoever was taken over is refused at its next claim, commit or refresh of ends; this makes it go at "
                  "once, tests/unit/core/delivery/test_takeover.py shows it",
    "claim_kept": "it would take a second execution that starts after a round without progress was stored; "
                  "tests/unit/core/delivery/test_positions.py shows it",
}


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_V11_no_violation(first: int) -> None:
    assert not violations(BULK, range(first, first + CHUNK))


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, 2_000, 100))
def test_V11_no_violation_in_many_seeds(first: int) -> None:
    assert not violations(BULK, range(first, first + 100))


@pytest.mark.parametrize("flaw", FOUND_WITHIN)
def test_each_planted_flaw_is_found(flaw: str) -> None:
    assert is_found(BULK, flaw, FOUND_WITHIN[flaw]), f"{flaw} was not found within {FOUND_WITHIN[flaw]} seeds"


@pytest.mark.long
@pytest.mark.parametrize("flaw", FOUND_WITHIN_LONG)
def test_each_rare_flaw_is_found(flaw: str) -> None:
    assert is_found(BULK, flaw, FOUND_WITHIN_LONG[flaw]), f"{flaw} was not found"


def test_every_flaw_has_its_place_in_these_tables() -> None:
    assert {*FOUND_WITHIN, *FOUND_WITHIN_LONG, *HARMLESS} == set(BULK.flaws)


class TestSeeds(SeedTests):
    bulk, flaw = BULK, "scan"
