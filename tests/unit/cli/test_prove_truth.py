"""Messages against what happened: values of every message, rows of copies, tables that joined later [K1, S4, S5]."""

from __future__ import annotations

import pytest

from millrace.cli.prove_check import check
from support_end_to_end import NAME, Run, a_run, harms


def test_K1_another_value_in_a_message_that_a_later_one_replaces_is_found() -> None:
    run = Run()
    run.row("c", 1, note="first")
    run.row("u", 1, note="second")
    happened = run.history[0]
    run.history[0] = happened._replace(after={"id": 1, "note": "other"})
    found = run.check()
    assert harms(found) == {"value"}
    assert "'note' 'first', it was 'other'" in found[0].what


def test_K1_an_image_that_should_not_be_there_is_found() -> None:
    run = Run()
    run.row("u", 1, note="a")
    run.rows[1] = {"id": 1, "note": "a"}
    run.history[0] = run.history[0]._replace(before={"id": 1, "note": "b"})
    assert harms(run.check()) == {"value"}


def test_C7_a_schema_change_that_tells_another_type_is_found() -> None:
    run = a_run()
    at = next(at for at, one in enumerate(run.history) if one.op == "alter")
    run.history[at] = run.history[at]._replace(types=(20, 25, 1700))
    assert harms(run.check()) == {"schema"}


def test_S5_a_copied_row_that_was_not_there_or_had_other_values_is_found() -> None:
    run = Run()
    run.held(1, "there")
    run.row("d", 1)
    for number, note, lsn in ((1, "other", 50), (1, "there", run.lsn), (2, "there", 50)):
        told = {where: list(messages) for where, messages in run.told.items()}
        run.copied(number, note, lsn)
        assert "copy" in harms(run.check()), (number, note, lsn)
        run.told.clear()
        run.told.update(told)


def joined() -> Run:
    """Of four changes the first two were committed before anybody followed the table; then it was copied."""
    run = Run()
    for number in range(4):
        run.row("c", number, note=f"n{number}")
        run.commit()
    run.history = [one._replace(told="joining") for one in run.history]
    run.told.update({where: [seen for seen in messages if seen.place.commit_lsn > 110]
                     for where, messages in run.told.items()})
    for number in range(2):
        run.copied(number, f"n{number}", 115)
    return run


def test_S5_what_a_table_held_when_it_joined_comes_with_its_copy() -> None:
    assert joined().check() == []


@pytest.mark.parametrize("lsn", [120, 130])
def test_S5_of_a_table_that_joined_nothing_is_lost_behind_its_copy(lsn: int) -> None:
    run = joined()
    without = {where: [seen for seen in messages if seen.place.commit_lsn != lsn]
               for where, messages in run.told.items()}
    assert "lost" in harms(run.check(without))


def test_S5_no_copy_stands_for_changes_of_a_table_that_was_always_there() -> None:
    run = joined()
    run.history = [one._replace(told="once") for one in run.history]
    assert harms(run.check()) == {"lost"}


def test_S5_rows_that_only_copies_show_need_no_message() -> None:
    run = Run()
    run.held(1, "staged")
    assert harms(run.check()) == {"rows"}
    run.copied(1, "staged", 50)
    assert run.check() == []
    assert check(run.told, run.history, {NAME: []}) != []
