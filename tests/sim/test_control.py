"""The control plane of changefeeds in a thousand small worlds [C1-C9, V9], and the proof that a flaw would be seen.

More seeds: `.venv/bin/python -m millrace_sim.control --seeds 5000 --jobs 2`. A failed seed prints its own command.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import Counter

import pytest

from millrace_sim.control.flaws import FLAWS
from millrace_sim.control.run import first_found, main, simulate
from millrace_sim.control.scale import measure
from millrace_sim.control.world import World

SEEDS = 1_000
KEPT = (1583, 2078)  # a start forgotten half way; a removal that waits for a capture that is never heard
CHUNK = 50  # seeds of one test, so that they spread over the cores

# Seeds 0, 1, 2… until a violation: each flaw must be found within so many.
FOUND_WITHIN = {
    "barrier_any": 10, "barrier_early": 5, "barrier_scan": 5, "base_ignored": 40, "checkpoint_no_barrier": 300,
    "checkpoint_placed": 5, "commit_any": 40, "create_late": 10, "drop_late": 10, "epochs_in_memory": 20, "fence": 30,
    "isolation_shared": 20, "maintainer_report": 30, "maintainer_sweep": 30, "mute_coordinator": 40,
    "no_bootstrap": 120, "rejoin_early": 40, "report": 20, "same_maintainer_epoch": 5, "scan": 5, "self_removal": 150,
    "token": 20, "unheard": 20,
}
FOUND_WITHIN_LONG = {"close": 400, "put_out": 600}

# Switched off alone, these were not found in seeds 0 to 399: another rule stands in, or this world meets the case too
# rarely. So the simulation says nothing for them; the test named here does.
NOT_FOUND = {
    "gone_in_round": "the fence keeps it safe, a round is wasted: test_manager, P2 one round at most",
    "hold": "the sweep ends what is left prepared, where it reaches: test_manager, C3 a prepared dispatcher goes",
    "old_token": "commands name epochs and incarnations, too: test_member, C1 a former coordinator",
    "rejoin_uncounted": "a checkpoint must fall into the time of one commit: test_barrier, C8 it rejoins in one commit",
    "stale_maintainer": "commands name the dispatcher's epoch, too: test_manager, C2 an older maintainer is refused",
    "sweep": "what is left removes itself by its positions' epoch: test_maintainer, C1 reported and not recorded",
}
# ... and two rules that stand in for each other.
FOUND_TOGETHER = {"sweep,self_removal": 30}


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_C1_to_C9_no_violation(first: int) -> None:
    outcomes = [simulate(seed) for seed in range(first, first + CHUNK)]
    assert not [str(outcome) for outcome in outcomes if outcome.violation]


@pytest.mark.parametrize("seed", KEPT)
def test_what_was_found_stays_mended(seed: int) -> None:
    assert not simulate(seed).violation


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + 9_000, 500))
def test_C1_to_C9_no_violation_in_many_seeds(first: int) -> None:
    outcomes = (simulate(seed) for seed in range(first, first + 500))
    assert not [str(outcome) for outcome in outcomes if outcome.violation]


@pytest.mark.parametrize("flaw", FOUND_WITHIN)
def test_each_planted_flaw_is_found(flaw: str) -> None:
    assert first_found(flaw, range(FOUND_WITHIN[flaw])), f"{flaw} was not found within {FOUND_WITHIN[flaw]} seeds"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flaw", FOUND_WITHIN_LONG)
def test_each_rare_flaw_is_found(flaw: str) -> None:
    assert first_found(flaw, range(FOUND_WITHIN_LONG[flaw])), f"{flaw} was not found"


@pytest.mark.parametrize("flaws", FOUND_TOGETHER)
def test_each_pair_of_flaws_is_found(flaws: str) -> None:
    assert first_found(flaws, range(FOUND_TOGETHER[flaws])), f"{flaws} were not found"


def test_every_flaw_has_its_place_in_these_tables() -> None:
    assert {*FOUND_WITHIN, *FOUND_WITHIN_LONG, *NOT_FOUND} == FLAWS.keys()


def test_the_worlds_are_hard_enough() -> None:
    """Every kind of fault, record and message that the rules are about happens in a few dozen seeds."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        world = World(seed, frozenset())
        world.run()
        seen += world.count
    faults = {f"fault {name}" for name in World(0, frozenset()).faults.every}
    records = {"SpanRecorded", "SpanPlaced", "SpansReplaced", "SpanEnded", "TableEnds", "TableTrouble"}
    messages = {"PrepareDispatcher", "StartDispatcher", "StopDispatcher", "PlaceMaintainer", "EndMaintainer"}
    others = {"elections", "crash", "put out", "ChangefeedRemoved", "ChangefeedFailed", "isolated", "rejoined"}
    assert not [name for name in faults | records | messages | others if not seen[name]]


def test_a_seed_is_a_run_in_every_process() -> None:
    script = "from millrace_sim.control.run import simulate; print([simulate(s).crc for s in range(4)])"
    said = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "src"},
            capture_output=True, check=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_a_failed_seed_prints_a_command_that_shows_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = first_found("scan", range(5))
    assert outcome is not None
    arguments = shlex.split(outcome.command)[3:]
    assert main([*arguments, "--tail", "5"]) == 1
    assert f"VIOLATION: {outcome.violation}" in capsys.readouterr().out
    assert outcome.command in str(outcome)


def test_a_good_seed_replays_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "0", "--tail", "1"]) == 0
    assert "no violation" in capsys.readouterr().out


def test_many_seeds_are_summed_up_on_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "4", "--first", "10", "--off", "scan,fence", "--jobs", "2"]) == 1
    assert "4 seeds, " in capsys.readouterr().out


def test_a_rule_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--off", "gravity"])
    assert "no such rule: gravity" in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_C5_a_pass_over_a_hundred_thousand_dispatchers_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    """100 captures: every pass below a second, all of it below 2 GiB. CPU seconds, since others may run here."""
    figures = measure()
    with capsys.disabled():
        print(f"\n{figures}")
    assert figures.longest_pass_s <= 1.0
    assert figures.one_change_s <= 0.2
    assert figures.idle_pass_s <= 0.1
    assert figures.lost_capture_s <= 1.0
    assert figures.memory_mib <= 2048
