"""The control plane of changefeeds in a thousand small worlds [C1-C9, V9] [F10]; proof that a flaw would be seen.

More seeds: `.venv/bin/python -m millrace_sim.control --seeds 5000 --jobs 2`. A failed seed prints its own command.
"""

from __future__ import annotations

from collections import Counter

import pytest

from millrace_sim.control.run import BULK
from millrace_sim.control.scale import measure
from millrace_sim.control.world import World
from support_bulk import SeedTests, is_found, violations

SEEDS = 1_000
KEPT = (
    1583,  # a start forgotten half way
    2078,  # a removal that waits for a capture that is never heard
    1318, 1483, 9767,  # a table is dropped while the rules leave it out, then they take it: it cannot join
    9550,  # made and dropped, then the changefeed goes back to before both
    1577, 3342,  # left while it was isolated and owed its drop, and was taken again before that was settled
    1604,  # a change was on its way to a table's target when the table lost its log
    2067, 9678, 5041, 5464,  # rules that a maintainer has read and not settled leave out a table that later ones take
)
CHUNK = 50  # seeds of one test, so that they spread over the cores

# Seeds 0, 1, 2… until a violation: each flaw must be found within so many.
FOUND_WITHIN = {
    "barrier_any": 10, "barrier_early": 5, "barrier_scan": 5, "base_ignored": 40, "begins_before_change": 60,
    "change_unheard": 10, "floor_dropped": 20, "floor_early": 10, "released_goes_on": 30,
    "checkpoint_no_barrier": 300, "checkpoint_placed": 5, "commit_any": 120, "create_late": 10, "drop_late": 10,
    "epochs_in_memory": 20, "fence": 30, "isolation_shared": 20, "leaves_at_once": 10, "maintainer_report": 30,
    "maintainer_sweep": 30, "mute_coordinator": 160, "no_bootstrap": 120, "put_out": 120, "rejoin_early": 40,
    "report": 20, "rewind_unfenced": 160, "rewound_again": 5, "same_maintainer_epoch": 5, "scan": 5,
    "self_removal": 250, "settings_kept": 10, "settled_early": 120, "token": 20, "unheard": 80,
}
FOUND_WITHIN_LONG = {"close": 400, "newer_settings": 1_000}

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
FOUND_TOGETHER = {"sweep,self_removal": 60}


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_C1_to_C9_no_violation(first: int) -> None:
    assert not violations(BULK, range(first, first + CHUNK))


@pytest.mark.parametrize("seed", KEPT)
def test_what_was_found_stays_mended(seed: int) -> None:
    assert not violations(BULK, [seed])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + 9_000, 500))
def test_C1_to_C9_no_violation_in_many_seeds(first: int) -> None:
    assert not violations(BULK, range(first, first + 500))


@pytest.mark.parametrize("flaw", FOUND_WITHIN)
def test_each_planted_flaw_is_found(flaw: str) -> None:
    assert is_found(BULK, flaw, FOUND_WITHIN[flaw]), f"{flaw} was not found within {FOUND_WITHIN[flaw]} seeds"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flaw", FOUND_WITHIN_LONG)
def test_each_rare_flaw_is_found(flaw: str) -> None:
    assert is_found(BULK, flaw, FOUND_WITHIN_LONG[flaw]), f"{flaw} was not found"


@pytest.mark.parametrize("flaws", FOUND_TOGETHER)
def test_each_pair_of_flaws_is_found(flaws: str) -> None:
    assert is_found(BULK, flaws, FOUND_TOGETHER[flaws]), f"{flaws} were not found"


def test_every_flaw_has_its_place_in_these_tables() -> None:
    assert {*FOUND_WITHIN, *FOUND_WITHIN_LONG, *NOT_FOUND} == set(BULK.flaws)


def test_the_worlds_are_hard_enough() -> None:
    """Every kind of fault, record and message that the rules are about happens in a few dozen seeds."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        world = World(seed, frozenset())
        world.run()
        seen += world.count
    drawn = World(0, frozenset()).faults
    faults = {f"fault {name}" for name in (*drawn.every, *drawn.of_log)}
    records = {"SpanRecorded", "SpanPlaced", "SpansReplaced", "SpanEnded", "TableEnds", "TableTrouble", "SpecSettled",
               "FeedRewound", "ChangefeedChanged", "TableNeedsCopy"}
    messages = {"PrepareDispatcher", "StartDispatcher", "StopDispatcher", "PlaceMaintainer", "EndMaintainer"}
    others = {"elections", "crash", "put out", "ChangefeedRemoved", "ChangefeedFailed", "isolated", "rejoined",
              "table begun", "silenced", "laid aside"}
    assert not [name for name in faults | records | messages | others if not seen[name]]


class TestSeeds(SeedTests):
    bulk, flaw = BULK, "scan"


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
