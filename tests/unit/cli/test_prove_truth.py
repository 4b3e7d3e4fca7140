"""Messages against what happened: values of every message, rows of copies, tables that joined later [K1, S4, S5]."""

from __future__ import annotations

import pytest

from millrace.cli.prove_check import check
from millrace.cli.prove_truth import _without_stand_ins
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


def test_K6_only_an_empty_text_or_zero_may_stand_for_what_was_not_sent() -> None:
    """In an old row, of a column that cannot be null."""
    was = {"id": 1, "name": None, "note": "x"}
    for stand_in in ("", 0, False):
        assert _without_stand_ins({"id": 1, "name": stand_in, "note": "x"}, was) == was
    for shown in ({"id": 1, "name": "other", "note": "x"}, {"id": 1, "name": 1, "note": "x"},
                  {"id": 1, "name": "", "note": ""}, {"id": 1, "name": ""}):
        assert _without_stand_ins(shown, was) != was


def test_C7_a_schema_change_that_tells_another_type_is_found() -> None:
    run = a_run()
    messages = run.told[run.topic, 0]
    at = next(at for at, seen in enumerate(messages) if seen.kind == "schema")
    messages[at] = messages[at]._replace(types=(20, 25, 1700))
    found, = run.check()
    assert found.harm == "schema"
    assert "shows types (20, 25, 1700), they were (20, 25, 25)" in found.what


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


def seen_in_part(*, copied: str = "second", told: tuple[int, ...] = (2,), at: int = 90) -> Run:
    """A row is made and changed twice; the snapshot of the first copy shows two of the three changes."""
    run = Run()
    if copied:
        run.copied(1, copied, at)
    for number, op in enumerate("cuu"):
        run.row(op, 1, note=("first", "second", "third")[number])
        run.commit()
    places = [one.place for one in run.history]
    run.history = [one._replace(told="joining") for one in run.history]
    run.told.update({where: [seen for seen in messages if seen.op == "r" or places.index(seen.place) in told]
                     for where, messages in run.told.items()})
    return run


def test_S12_the_copy_with_which_a_table_joins_stands_below_what_it_shows() -> None:
    assert seen_in_part().check() == []


def test_S12_what_the_first_copy_shows_is_told_no_more_and_all_else_is() -> None:
    assert "copy" in harms(seen_in_part(copied="first").check()), "it shows less than is missing"
    assert "copy" in harms(seen_in_part(copied="third").check()), "it shows more than is missing"
    assert "lost" in harms(seen_in_part(copied="first", told=(0, 2)).check()), "a change in between is missing"
    assert "copy" in harms(seen_in_part(at=105, told=(0, 1, 2), copied="second").check()), "nothing is missing"
    assert "lost" in harms(seen_in_part(copied="", told=()).check())


def test_S12_a_transaction_is_shown_by_the_first_copy_or_told_not_both() -> None:
    run = Run()
    for number in range(2):
        run.row("c", number, note="n")
    run.commit()
    run.history = [one._replace(told="joining") for one in run.history]
    gone = run.history[0].place
    run.told.update({where: [seen for seen in messages if seen.place != gone] for where, messages in run.told.items()})
    run.copied(0, "n", 90)
    found = run.check()
    assert [(one.harm, one.what) for one in found] == [("lost", f"a part of the transaction at {gone.commit_lsn:X}")]


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
