"""The crash model catches what it is there for: each planted flaw is found within a fixed number of histories."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from millrace.errors import DiskFailed, MillraceError
from millrace.log.files import partition_log
from millrace.log.files.formats import NO_DATA, Entry
from millrace.log.files.log_dir import LogDir
from millrace.log.files.partition_log import PartitionLog
from millrace.log.files.recovery import Redo, Scan
from millrace.log.files.syncer import Syncer
from support_crash_history import Life, run

HISTORIES = 400


def history(seed: int) -> list[Life]:
    rng = random.Random(seed)
    names = ["append"] * 6 + ["truncate"] * 2 + ["end_round"] * 2
    names += ["begin_round", "catch_up", "roll", "remember_hw", "restart", "retain", "delete"]

    def operation() -> tuple[Any, ...]:
        name, n = rng.choice(names), rng.randrange(3)
        match name:
            case "append":
                return name, n, rng.choice([rng.randint(50, 1_200), rng.randint(1_600, 9_000)]), rng.randrange(256)
            case "begin_round" | "end_round" | "catch_up":
                return (name,)
            case "roll" | "delete":
                return name, n
        return name, n, rng.random() * 0.999

    return [
        Life(
            [operation() for _ in range(rng.randint(0, 25))], power=rng.random() < 0.6, in_last=rng.randint(0, 12),
            in_recovery=rng.randint(0, 30), after=rng.random() < 0.5, failures=rng.choice([0, 0, 0, 1, 2, 3]),
        )
        for _ in range(rng.randint(1, 4))
    ]


def found_at(limit: int) -> int | None:
    for seed in range(limit):
        try:
            run(seed, scatter=seed % 2 == 0, lives=history(seed))
        except (AssertionError, MillraceError, OSError):
            return seed
    return None


Plant = Callable[[pytest.MonkeyPatch], None]


def report_before_the_sync(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Syncer, "run_round", lambda self, tasks: {})


def truncate_before_the_journal_knows(plant: pytest.MonkeyPatch) -> None:
    def tell(
        self: PartitionLog, kind: int, offset: int, position: int = 0, data: memoryview = NO_DATA, *, sync: bool = False
    ) -> None:
        home = self._home
        home.journal.add(Entry(kind, self.tp, home.next_generation(), offset, position, data))

    plant.setattr(PartitionLog, "tell_journal", tell)


def write_over_what_was_cut(plant: pytest.MonkeyPatch) -> None:
    cut = partition_log.cut_file

    def cut_and_go_on(home: Any, file: Any, position: int) -> None:
        cut(home, file, position)
        file.sealed = False

    plant.setattr(partition_log, "cut_file", cut_and_go_on)


def keep_files_of_older_generations(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Redo, "chosen", lambda self: [self.files[base] for base in sorted(self.files)])


def forget_the_journal_before_the_files_are_synced(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Syncer, "run_catch_up", lambda self, tasks: {})


def sync_no_names(plant: pytest.MonkeyPatch) -> None:
    sync = Syncer._sync
    plant.setattr(Syncer, "_sync", lambda self, task: sync(self, task._replace(folder=None)))


def replay_no_truncation(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Redo, "_truncate", lambda self, event: None)


def replay_no_append(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Redo, "_append", lambda self, event: None)


def believe_the_page_cache_after_a_failed_sync(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(Scan, "_rewrite", lambda self, file, data, position: None)


def acknowledge_after_a_failed_sync(plant: pytest.MonkeyPatch) -> None:
    def run_round(self: Syncer, tasks: Any) -> dict[PartitionLog, DiskFailed]:
        try:
            honest(self, tasks)
        except DiskFailed:
            pass
        return {}

    honest = Syncer.run_round
    plant.setattr(Syncer, "run_round", run_round)


def forget_deletions_that_the_journal_does_not_know(plant: pytest.MonkeyPatch) -> None:
    plant.setattr(LogDir, "_taken_away", lambda self: [])


PLANTS: list[Plant] = [
    report_before_the_sync, truncate_before_the_journal_knows, write_over_what_was_cut,
    keep_files_of_older_generations, forget_the_journal_before_the_files_are_synced, sync_no_names,
    replay_no_truncation, replay_no_append, believe_the_page_cache_after_a_failed_sync,
    acknowledge_after_a_failed_sync, forget_deletions_that_the_journal_does_not_know,
]


@pytest.mark.parametrize("flaw", PLANTS, ids=lambda flaw: flaw.__name__)
def test_L11_a_planted_flaw_is_found(monkeypatch: pytest.MonkeyPatch, flaw: Plant) -> None:
    flaw(monkeypatch)
    at = found_at(HISTORIES)
    assert at is not None, f"{flaw.__name__} was not found in {HISTORIES} histories"
    print(f"{flaw.__name__}: found in history {at}")


def test_L11_without_a_flaw_the_same_histories_pass() -> None:
    assert found_at(HISTORIES) is None


@pytest.mark.long
def test_L11_without_a_flaw_many_histories_pass() -> None:
    assert found_at(50_000) is None
