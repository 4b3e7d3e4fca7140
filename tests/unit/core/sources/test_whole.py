"""Windows of tables without a key: the rows and the changes that follow them are the table, wherever it was read [S5].

The model below is the part of a server that matters here: numbers of transactions, commits in the WAL that become
visible later, locks, snapshots, and an attempt at a window that waits for the writers of its low mark.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.sources import whole
from millrace.core.sources.copies import Attempt
from millrace.core.sources.whole import Replaced, Row, Snapshot, Step, Whole, parse_snapshot, unseen
from millrace.core.sources.windows import Window
from millrace.errors import Malformed
from millrace.model.progress import Manifest

EPOCH = 1 << 32
A, B, C = ("a",), ("b",), ("c",)


def window(low: int, high: int, snapshot: str) -> Window:
    manifest = Manifest(1, 1, 0, 1, 10, "watermark", UUID(int=1), (), 0, 0, snapshot=snapshot)
    return Window(Attempt(1, 0, 1), 10, low, high, manifest)


# -- which transactions a snapshot contains --------------------------------------------------------------------------
@pytest.mark.parametrize(("xid", "contained"), [(5, True), (11, True), (12, False), (15, False), (19, True),
                                                (20, False), (21, False)])
def test_S5_a_snapshot_contains_what_ended_before_it(xid: int, contained: bool) -> None:
    assert parse_snapshot("10:20:12,15").contains(xid) is contained


def test_S5_numbers_of_the_stream_have_lost_their_epoch() -> None:
    seen = parse_snapshot(f"{EPOCH - 2}:{EPOCH + 10}:{EPOCH - 2},{EPOCH + 5}")
    assert not seen.contains(EPOCH - 2), "it runs since before the numbers began anew"
    assert seen.contains(EPOCH - 1)
    assert seen.contains(4)
    assert not seen.contains(5)
    assert not seen.contains(10)
    before_the_turn = parse_snapshot(f"{3 * EPOCH - 5}:{3 * EPOCH - 4}:")
    assert before_the_turn.contains(EPOCH - 5)
    assert not before_the_turn.contains(7), "the turn comes behind the snapshot"


@given(st.integers(0, 1 << 62), st.integers(-(1 << 31), (1 << 31) - 1), st.booleans())
def test_S5_within_half_of_all_numbers_nothing_is_mistaken(xmax: int, distance: int, runs: bool) -> None:
    number = xmax + distance
    seen = Snapshot(xmax, frozenset([number] if runs and distance < 0 else []))
    assert seen.contains(number % EPOCH) is (distance < 0 and not runs)


@pytest.mark.parametrize("text", ["", "10", "10:20", "10:x:", "10:20:1,,y", "1:2:3:4"])
def test_L19_what_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse_snapshot(text)


# -- what follows the rows -------------------------------------------------------------------------------------------
def test_S5_below_the_low_mark_all_is_contained_behind_the_high_mark_nothing_between_the_snapshot_tells() -> None:
    steps = [Step(9, 100, came=A), Step(11, 90, came=A), Step(12, 101, came=B), Step(20, 99, came=C),
             Step(21, 90, came=C)]
    assert list(unseen(window(10, 20, "99:101:99"), steps)) == [steps[2], steps[3], steps[4]]


def test_S4_all_changes_of_a_generation_follow_the_rows_of_its_first_snapshot() -> None:
    steps = [Step(50, 7, came=A)]
    assert list(unseen(window(49, 49, "5:9:"), steps)) == steps


def test_S7_a_table_that_was_gone_when_it_was_to_be_read_contains_all_there_was() -> None:
    table = Whole(Counter({A: 2}))
    assert table.chunk(window(10, 20, ""), [], [Step(11, 7, came=A), Step(12, 8, went=A)]) == Replaced(
        Counter(), Counter({A: 2}))


def test_S4_a_window_replaces_and_tells_what_came_and_went() -> None:
    table = Whole(Counter({A: 3, B: 1}))
    done = table.chunk(window(10, 20, "5:9:7"), [A, C, C], [Step(12, 7, went=C, came=B), Step(13, 8, came=C)])
    assert table.rows == Counter({A: 1, B: 1, C: 1})
    assert done == Replaced(Counter({C: 1}), Counter({A: 2}))


def test_S7_a_truncation_that_was_not_seen_takes_the_rows_and_one_that_was_does_not() -> None:
    for snapshot, rows in (("5:9:", {A: 1, B: 1}), ("7:7:", {B: 1})):
        table = Whole()
        table.chunk(window(10, 20, snapshot), [A], [Step(12, 8, truncates=True), Step(13, 9, came=B)])
        assert table.rows == Counter(rows), snapshot


def test_S4_rows_that_went_before_anybody_brought_them_are_put_right_by_the_first_copy() -> None:
    table = Whole()
    table.apply(Step(5, 7, went=A))
    assert table.rows == Counter({A: -1})
    assert table.chunk(window(10, 20, "8:8:"), [B], [Step(5, 7, went=A)]) == Replaced(Counter({A: 1, B: 1}), Counter())
    assert table.rows == Counter({B: 1})


# -- a server --------------------------------------------------------------------------------------------------------
@dataclass
class Transaction:
    xid: int
    writes: list[Step] = field(default_factory=list)
    commit_lsn: int = 0             # 0: not yet in the WAL
    exclusive: bool = False         # truncates


@dataclass
class Server:
    """One table. `open`: transactions whose locks are held; their rows are seen by nobody else."""

    rng: random.Random
    next_xid: int
    lsn: int = 10
    open: list[Transaction] = field(default_factory=list)
    stream: list[Step] = field(default_factory=list)
    seen: Whole = field(default_factory=Whole)
    ended: int = 0                  # the greatest number that has ended
    reading: bool = False           # the window's lock is held

    def act(self) -> None:
        roll, pick = self.rng.random(), self.rng.choice(self.open) if self.open else None
        if pick is None or roll < 0.3:
            self.begin()
        elif roll < 0.55 and not pick.commit_lsn and not pick.exclusive:
            self.write(pick)
        elif roll < 0.8 and not pick.commit_lsn:
            self.commit(pick)
        elif pick.commit_lsn or roll > 0.97:
            self.end(pick)

    def begin(self) -> None:
        truncates = self.rng.random() < 0.3 and not self.open and not self.reading
        if self.open and self.open[-1].exclusive:
            return                                  # they wait for its lock
        made = Transaction(self.next_xid, exclusive=truncates)
        if truncates:
            made.writes.append(Step(0, made.xid % EPOCH, truncates=True))
        self.next_xid += self.rng.choice((1, 1, 2))     # other tables have writers, too
        self.open.append(made)

    def write(self, by: Transaction) -> None:
        gone = self.rng.choice((None, A, B, C))
        by.writes.append(Step(0, by.xid % EPOCH, went=gone, came=self.rng.choice((A, B, C) if gone is None
                                                                                  else (None, A, B, C))))

    def commit(self, one: Transaction) -> None:
        self.lsn += self.rng.choice((1, 3))
        one.commit_lsn = self.lsn
        self.stream += [step._replace(commit_lsn=self.lsn) for step in one.writes]

    def end(self, one: Transaction) -> None:
        """Visible from now on; one that is not in the WAL was rolled back."""
        self.open.remove(one)
        self.ended = max(self.ended, one.xid)
        for step in one.writes if one.commit_lsn else ():
            self.seen.apply(step)

    def snapshot(self) -> str:
        xmax = self.ended + 1
        running = sorted(one.xid for one in self.open if one.xid < xmax)
        return f"{min([*running, xmax])}:{xmax}:{','.join(map(str, running))}"


def read(rng: random.Random, first_xid: int) -> tuple[Window, Counter[Row], list[Step], Counter[Row]]:
    """A window among writers: it, its rows, the stream some time later, and what the table is by then."""
    server = Server(rng, first_xid, ended=first_xid - 1)
    server.seen.rows.update({A: 5, B: 5, C: 5})
    table = Whole(Counter(server.seen.rows))
    busy(server, 12)
    server.lsn += 1
    low, writers = server.lsn, list(server.open)
    busy(server, 6)
    while any(one in server.open for one in writers):
        server.act()
    busy(server, 3)
    while any(one.exclusive for one in server.open):     # the window waits for its lock, as any reader
        server.act()
    server.reading = True
    text, rows = server.snapshot(), Counter(server.seen.rows)
    busy(server, 8)
    server.reading = False
    busy(server, 4)
    server.lsn += 1
    seen = window(low, server.lsn, text)
    busy(server, rng.choice((0, 20)))
    for step in server.stream:
        table.apply(step)
    return seen, rows, server.stream, table.rows


def busy(server: Server, steps: int) -> None:
    for _ in range(steps):
        server.act()


def is_right(seed: int, first_xid: int) -> bool:
    seen, rows, stream, truth = read(random.Random(seed), first_xid)
    table = Whole()
    table.chunk(seen, rows, stream)
    return table.rows == truth


FIRST = (3, 1 << 31, EPOCH - 5, EPOCH + 3, 7 * EPOCH - 9, 9 * EPOCH + (1 << 31) - 4)


@settings(max_examples=300)
@given(st.integers(0, 1 << 32), st.sampled_from(FIRST))
def test_S5_rows_and_what_they_have_not_seen_are_the_table(seed: int, first_xid: int) -> None:
    assert is_right(seed, first_xid)


# -- rules that are almost right -------------------------------------------------------------------------------------
def by_marks(upto_high: bool) -> Callable[[Window, list[Step]], Iterator[Step]]:
    def rule(seen: Window, steps: list[Step]) -> Iterator[Step]:
        return (step for step in steps if step.commit_lsn > (seen.high if upto_high else seen.low))
    return rule


def by_snapshot(contains: Callable[[str, int], bool]) -> Callable[[Window, list[Step]], Iterator[Step]]:
    def rule(seen: Window, steps: list[Step]) -> Iterator[Step]:
        return (step for step in steps if step.commit_lsn > seen.low
                and (step.commit_lsn > seen.high or not contains(seen.manifest.snapshot, step.xid)))
    return rule


def below_xmax(text: str, xid: int) -> bool:
    return parse_snapshot(text)._replace(running=frozenset()).contains(xid)


def below_xmin(text: str, xid: int) -> bool:
    return Snapshot(int(text.split(":")[0]), frozenset()).contains(xid)


def without_epoch(text: str, xid: int) -> bool:
    return xid < int(text.split(":")[1]) and str(xid) not in text.split(":")[2].split(",")


def lower_halves(text: str, xid: int) -> bool:
    seen = parse_snapshot(text)
    return xid < seen.xmax % EPOCH and xid not in {one % EPOCH for one in seen.running}


@pytest.mark.parametrize("rule", [
    by_marks(upto_high=False), by_marks(upto_high=True), by_snapshot(below_xmax), by_snapshot(below_xmin),
    by_snapshot(without_epoch), by_snapshot(lower_halves),
], ids=["low mark", "high mark", "xmax", "xmin", "no epoch", "lower halves"])
def test_S5_a_rule_that_is_almost_right_is_caught(rule: Callable[..., Iterator[Step]], monkeypatch: pytest.MonkeyPatch
                                                  ) -> None:
    monkeypatch.setattr(whole, "unseen", rule)
    assert not all(is_right(seed, FIRST[seed % len(FIRST)]) for seed in range(200))


def test_S5_the_model_comes_to_what_it_is_there_for() -> None:
    """Commits between the marks on both sides of the snapshot, one that ran in it, truncations on both sides."""
    kinds: Counter[str] = Counter()
    for seed in range(200):
        seen, _, stream, _ = read(random.Random(seed), 3)
        snapshot, left = parse_snapshot(seen.manifest.snapshot), list(unseen(seen, stream))
        for step in stream:
            if seen.low < step.commit_lsn <= seen.high:
                kinds[("truncate " if step.truncates else "") + ("unseen" if step in left else "contained")] += 1
                kinds["ran"] += step.xid in snapshot.running
    assert set(+kinds) == {"unseen", "contained", "truncate unseen", "truncate contained", "ran"}
