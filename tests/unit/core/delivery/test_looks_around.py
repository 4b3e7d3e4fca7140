"""Which look that has ended is a reason for a pass: nobody who could do something waits for nobody [P7, C9]."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core.delivery.looks_around import FLAWS, Behind, LooksAround
from millrace.model.spans import Dispatcher

WELL = Behind(erring=False, untold=False, may_plan=True, must_look=False)
ONE, MANY = Dispatcher(0, 1), [Dispatcher(n, 1) for n in range(1, limits.IDLE_LOOKS_MAX + 1)]


def looking(*who: Dispatcher, has_to: bool = False) -> LooksAround:
    looks = LooksAround()
    looks.pass_begins()
    assert all(looks.begin(one, has_to=has_to) for one in who)
    return looks


def test_P7_who_looked_around_and_found_what_it_knew_is_no_reason() -> None:
    assert not looking(ONE).ended(ONE, WELL, failed=False)


def test_C9_who_had_to_look_before_it_could_plan_is_woken_by_the_end_of_its_look() -> None:
    assert looking(ONE, has_to=True).ended(ONE, WELL, failed=False)


@pytest.mark.parametrize("behind", [
    WELL._replace(erring=True), WELL._replace(untold=True), WELL._replace(may_plan=False),
    WELL._replace(must_look=True)])
def test_C9_who_stands_otherwise_behind_its_look_is_a_reason(behind: Behind) -> None:
    assert looking(ONE).ended(ONE, behind, failed=False)
    assert LooksAround().all_ended([WELL, behind], failed=False)


def test_C9_a_look_that_failed_is_a_reason() -> None:
    assert looking(ONE).ended(ONE, WELL, failed=True)
    assert LooksAround().all_ended([WELL], failed=True)
    assert not LooksAround().all_ended([WELL], failed=False)


def test_C9_whoever_has_to_look_and_found_no_room_has_it_when_one_has_ended() -> None:
    looks = looking(*MANY)
    assert not looks.begin(ONE, has_to=True)
    assert looks.ended(MANY[0], WELL, failed=False)
    looks.pass_begins()
    assert looks.begin(ONE, has_to=True)
    assert not looks.ended(MANY[1], WELL, failed=False), "nobody waits any more"


def test_P7_whoever_only_looks_around_and_found_no_room_waits_for_the_end_of_all() -> None:
    looks = looking(*MANY)
    assert not looks.begin(ONE, has_to=False)
    assert [looks.ended(one, WELL, failed=False) for one in MANY] == [False] * (len(MANY) - 1) + [True]


def test_C9_who_looks_while_work_comes_is_passed_over_and_woken_by_the_end() -> None:
    looks = looking(ONE)
    looks.pass_begins()
    looks.waits()
    assert looks.ended(ONE, WELL, failed=False)


# -- whatever comes ----------------------------------------------------------------------------------------------------
@dataclass
class One:
    """`looks_until`, `waits_until`: 0.0: it does not look, it does not wait after an error."""

    who: Dispatcher
    look_at: float
    work: bool = False
    must_look: bool = False
    untold: bool = False
    erring: bool = False
    looks_until: float = 0.0
    waits_until: float = 0.0

    @property
    def behind(self) -> Behind:
        return Behind(erring=self.erring, untold=self.untold, may_plan=not self.looks_until, must_look=self.must_look)

    def could_do_something(self, now: float) -> bool:
        """Whose look is due says that it is well behind that."""
        free, is_well = not self.looks_until and not self.waits_until, self.erring and now < self.look_at
        return free and (self.untold or (not self.must_look and (self.work or is_well)))


class World:
    """Dispatchers of a changefeed whose passes come only when something wakes them."""

    def __init__(self, seed: int, flaws: frozenset[str]) -> None:
        self.rng, self.now, self.looks = random.Random(seed), 0.0, LooksAround(flaws)
        count, spread_s = self.rng.choice((2, 20, 60)), self.rng.choice((1.0, 40.0))
        self.fails = self.rng.choice((0.0, 0.2))
        self.all = [One(Dispatcher(n, 1), self.rng.uniform(1.0, 1.0 + spread_s)) for n in range(count)]
        self.put_off = False

    def pass_(self) -> None:
        self.looks.pass_begins()
        self.put_off = False
        for one in self.all:
            if one.waits_until:
                continue
            if one.untold:
                one.untold, one.erring, one.waits_until = False, True, self.now + self.rng.uniform(0.5, 5.0)
            elif one.looks_until:
                self.looks.waits()
            elif one.must_look or (not one.work and self.now >= one.look_at):
                if self.looks.begin(one.who, has_to=one.must_look):
                    one.looks_until = self.now + self.rng.uniform(0.1, 2.0)
                else:
                    self.put_off = True
            else:
                one.work = one.erring = False

    def event(self) -> bool:
        """Whether it wakes."""
        one = self.rng.choice(self.all)
        if self.rng.random() < 0.5:
            one.work = True
        else:
            one.work = one.must_look = True
        return True

    def ends(self) -> bool:
        """Of waits and of looks."""
        again = False
        for one in [one for one in self.all if 0.0 < one.waits_until <= self.now]:
            one.waits_until, again = 0.0, True
        for one in [one for one in self.all if 0.0 < one.looks_until <= self.now]:
            one.looks_until, failed = 0.0, self.rng.random() < self.fails
            if failed:
                one.untold = True
            else:
                one.must_look, one.look_at = False, self.now + 60.0
            again |= self.looks.ended(one.who, one.behind, failed=failed)
        return again

    def check(self) -> None:
        waiting = [one for one in self.all if one.could_do_something(self.now)]
        assert not waiting, "a lost wake-up"
        under_way = sum(one.looks_until > 0.0 for one in self.all)
        assert under_way <= limits.IDLE_LOOKS_MAX
        room = under_way < limits.IDLE_LOOKS_MAX
        have_to = [one for one in self.all if one.must_look and not one.looks_until and not one.waits_until]
        assert not (room and have_to), "who has to look does not"
        assert under_way or not self.put_off, "nobody looks, and who was put off waits"


def play(seed: int, flaws: frozenset[str] = frozenset()) -> None:
    """AssertionError: somebody who could do something waits for nobody."""
    world, timer = World(seed, flaws), 0.0
    while world.now < 60.0:
        world.now += 0.1
        again = world.ends()
        if world.rng.random() < 0.02:
            again |= world.event()
        if again or world.now >= timer:
            world.pass_()
            timer = world.now + limits.ENDS_LOOK_S
        world.check()


@given(st.integers(0, 10**9))
def test_C9_nobody_waits_for_nobody_whatever_comes(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("flaw", FLAWS)
def test_the_checker_finds_planted_flaws(flaw: str) -> None:
    def broken(seed: int) -> bool:
        try:
            play(seed, frozenset((flaw,)))
        except AssertionError:
            return True
        return False

    assert any(map(broken, range(100)))
