"""The machines in thousands of small worlds [L5-L9, L11-L20] [L23] [L28] [F10]; the checkers are shown to see flaws.

In every second world logs are cut [L23], below floors [F10], and writers outlive their batches [L28].
More seeds: `.venv/bin/python -m millrace_sim.machines --seeds 20000 --jobs 2`. A failed seed prints its own command.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import fields

import pytest

from millrace.core.flaws import Flaws
from millrace_sim.machines.run import Outcome, main, simulate, sweep

SEEDS = 1000
CHUNK = 50  # seeds of one test, so that they spread over the cores

# Seeds 0, 1, 2… until a violation: each flaw must be found within this many, by all checkers and by those alone that
# see what a client or a replica could notice. At least 1.4 times the longest run without a find in 300 seeds.
BUDGETS: dict[str, tuple[int, int | None]] = {
    # flaw: (all checkers, symptoms only)
    "credit_on_send": (20, 60),
    "elect_by_leo": (90, 90),
    "hw_over_all": (80, 80),
    "hw_over_known": (150, 400),
    "no_truncation": (30, 30),
    "hw_before_data": (20, 20),
    "same_epoch_after_restart": (20, 300),
    "leader_owned_isr": (150, 150),
    "heartbeat_overwrites": (60, 350),
    "leo_before_disk": (20, 300),
    "cut_above_hw": (40, 40),
    "cut_above_floor": (15, 25),
    "cut_unrecorded": (10, 10),
    "writers_forgotten": (160, None),   # its symptom needs a writer that sleeps through cut and fail-over
}

# Seeds that once failed, each with what it showed.
KEPT = {
    11143: "a registration of an earlier boot, late until after healing, replaces the broker: it ends and starts again",
}


def first_violation(flaw: str, budget: int, *, symptoms_only: bool) -> Outcome | None:
    return next((o for o in sweep(range(budget), flaw, symptoms_only=symptoms_only) if o.violation), None)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_L5_to_L28_no_violation(first: int) -> None:
    outcomes = list(sweep(range(first, first + CHUNK)))
    assert not [str(o) for o in outcomes if o.violation]
    assert sum(o.acks for o in outcomes) > CHUNK * 20, "a world in which nothing is acknowledged shows nothing"


@pytest.mark.parametrize("seed", KEPT)
def test_L5_to_L28_no_violation_in_a_kept_seed(seed: int) -> None:
    outcome = simulate(seed)
    assert not outcome.violation, f"{outcome}: {KEPT[seed]}"


@pytest.mark.parametrize("flaw", BUDGETS)
def test_each_planted_flaw_is_found(flaw: str) -> None:
    found = first_violation(flaw, BUDGETS[flaw][0], symptoms_only=False)
    assert found is not None, f"{flaw} was not found within {BUDGETS[flaw][0]} seeds"


@pytest.mark.parametrize("flaw", [flaw for flaw, (_, budget) in BUDGETS.items() if budget])
def test_each_planted_flaw_shows_symptoms(flaw: str) -> None:
    budget = BUDGETS[flaw][1]
    assert budget is not None
    found = first_violation(flaw, budget, symptoms_only=True)
    assert found is not None, f"{flaw} showed no symptom within {budget} seeds"


def test_every_flaw_has_a_budget() -> None:
    assert set(BUDGETS) == {field.name for field in fields(Flaws)}


def test_a_seed_gives_the_same_run_under_another_hash_seed() -> None:
    program = "from millrace_sim.machines.run import simulate; print([simulate(s).crc for s in range(20)])"
    runs = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "src"},
            check=True, capture_output=True, text=True,
        ).stdout
        for seed in ("1", "77")
    }
    assert runs == {f"{[simulate(s).crc for s in range(20)]}\n"}


def test_a_failed_seed_names_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = first_violation("hw_before_data", 20, symptoms_only=True)
    assert found is not None
    assert found.command in str(found)
    python, _, module, *arguments = shlex.split(found.command)
    assert (python, module) == (".venv/bin/python", "millrace_sim.machines")
    assert main(arguments) == 1
    assert capsys.readouterr().out.endswith(f"VIOLATION: {found.violation}\n")


def test_a_clean_seed_replays_cleanly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "0", "--tail", "1"]) == 0
    assert "no violation" in capsys.readouterr().out


def test_many_seeds_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "8", "--flaw", "no_truncation"]) == 1
    assert "8 seeds, " in capsys.readouterr().out
