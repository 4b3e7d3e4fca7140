"""What must hold of every room that runs seeds in bulk (`millrace_sim.bulk`): one class of tests, given a room each.

    class TestSeeds(SeedTests):
        bulk, flaw = BULK, "scan"
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable

import pytest

from millrace_sim.bulk import Bulk


def violations(bulk: Bulk, seeds: Iterable[int]) -> list[str]:
    """With the command that replays each."""
    return [str(outcome) for outcome in bulk.sweep(seeds) if outcome.violation]


def is_found(bulk: Bulk, flaw: str, within: int) -> bool:
    return bulk.first_found(flaw, range(within)) is not None


class SeedTests:
    """`flaw` is found within 20 seeds."""

    bulk: Bulk
    flaw: str

    def test_a_seed_is_a_run_in_every_process(self) -> None:
        room = self.bulk.room
        script = f"from millrace_sim.{room}.run import BULK; print([BULK.simulate(s).crc for s in range(4)])"
        said = {
            subprocess.run(
                [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "src"},
                capture_output=True, check=True, text=True,
            ).stdout
            for seed in ("1", "2")
        }
        assert len(said) == 1

    def test_a_failed_seed_prints_a_command_that_shows_it_again(self, capsys: pytest.CaptureFixture[str]) -> None:
        outcome = self.bulk.first_found(self.flaw, range(20))
        assert outcome is not None
        arguments = shlex.split(outcome.command)[3:]
        assert self.bulk.main([*arguments, "--tail", "5"]) == 1
        assert f"VIOLATION: {outcome.violation}" in capsys.readouterr().out
        assert outcome.command in str(outcome)

    def test_a_good_seed_replays_quietly(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.bulk.main(["--seed", "0", "--tail", "1"]) == 0
        assert "no violation" in capsys.readouterr().out

    def test_many_seeds_are_summed_up_on_several_processes(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.bulk.main(["--seeds", "20", "--off", self.flaw, "--jobs", "2"]) == 1
        assert "20 seeds, " in capsys.readouterr().out

    def test_the_table_says_which_rules_are_missed(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.bulk.main(["--table", "--off", self.flaw, "--seeds", "20"]) == 0
        assert self.flaw in capsys.readouterr().out

    def test_a_rule_that_does_not_exist_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            self.bulk.main(["--off", "gravity"])
        assert "no such rule: gravity" in capsys.readouterr().err
