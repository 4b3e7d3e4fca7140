"""The verdict on a changefeed, and the parts in which planted flaws are looked for [A5]."""

from __future__ import annotations

from millrace.cli.prove_check import check
from millrace.cli.prove_judge import Parts, judge, together
from support_end_to_end import NAME, Run, a_run


def two_tables() -> tuple[Run, Run]:
    """One of them was renamed: it goes on in another topic."""
    renamed = Run(table=("public", "season_0"), oid=8, lsn=5_000)
    renamed.row("c", 1, note="a")
    renamed.rename("season_1")
    renamed.row("u", 1, note="b")
    return a_run(), renamed


def test_A5_a_part_is_judged_as_the_whole_is() -> None:
    one, other = two_tables()
    told, history = {**one.told, **other.told}, [*one.history, *other.history]
    rows = {NAME: list(one.rows.values()), other.table: list(other.rows.values())}
    assert check(told, history, rows) == []
    for run, topics in ((one, {one.topic}), (other, {"shop.public.season_0", "shop.public.season_1"})):
        touched = {**told, (run.topic, 0): list(told[run.topic, 0])}
        part = Parts(told, history, rows).of(touched)
        assert {where[0] for where in part[0]} == topics
        assert {happened.oid for happened in part[1]} == {run.oid}
        assert list(part[2]) == [run.table]
        assert check(*part) == []


def test_A5_rows_that_stay_under_a_name_given_up_are_found() -> None:
    _, renamed = two_tables()
    told = {where: [seen for seen in messages if seen.kind != "truncate"] for where, messages in renamed.told.items()}
    assert renamed.check() == []
    assert [(one.harm, one.where) for one in renamed.check(told)] == [("rows", "public.season_0")]


def test_A5_every_flaw_is_found_in_its_part() -> None:
    one, other = two_tables()
    rows = {NAME: list(one.rows.values()), other.table: list(other.rows.values())}
    for seed in range(10):
        result = judge({**one.told, **other.told}, [*one.history, *other.history], rows, seed)
        assert result["ok"], result
        assert all(result["planted"].values()), result["planted"]
    assert len(result["planted"]) == 10


def test_A5_what_was_found_is_told_and_nothing_is_planted_in_it() -> None:
    run = a_run()
    run.history.pop()
    result = judge(run.told, run.history, {NAME: list(run.rows.values())}, 1)
    assert not result["ok"]
    assert result["planted"] == {}
    assert any(text.startswith("invented") for text in result["found"])


def test_A5_a_flaw_must_be_found_wherever_it_could_be_planted() -> None:
    assert [together(found) for found in ([True, None], [None, None], [True, False])] == [True, None, False]
