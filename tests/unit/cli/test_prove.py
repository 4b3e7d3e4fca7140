"""The judge of the end-to-end proof must be able to say no: every flaw that can be planted is found [C7, K3, K5]."""

from __future__ import annotations

import random

import pytest

from millrace.cli.prove_check import check, counts
from millrace.cli.prove_messages import Happened, understand
from millrace.cli.prove_plants import plants
from millrace.log.client import Record
from millrace.model.tables import Place
from support_end_to_end import NAME, PARTITIONS, Run, a_run, harms


def test_A5_a_run_that_went_well_has_no_findings() -> None:
    run = a_run()
    assert run.check() == []
    assert counts(run.told) == {"r": 15, "c": 11, "u": 14, "d": 1, "tombstone": 1, "schema alter": 2, "watermark": 2}
    run.truncate()
    run.commit()
    run.row("c", 1, text="again")
    assert run.check() == []


@pytest.mark.parametrize("seed", range(20))
def test_A5_every_planted_flaw_is_found(seed: int) -> None:
    run = a_run()
    found = list(plants(run.told, [NAME], random.Random(seed)))
    assert len(found) == 10
    for plant in found:
        assert plant.told is not None, plant.name
        assert plant.harm in harms(run.check(plant.told)), plant.name
    assert run.check() == [], "planting leaves the messages alone"


@pytest.mark.parametrize("seed", range(5))
def test_A5_a_value_is_planted_only_where_the_rows_at_the_end_show_it(seed: int) -> None:
    run = a_run()
    run.truncate()
    assert [plant.told for plant in plants(run.told, [NAME], random.Random(seed)) if plant.harm == "rows"] == [None]
    renamed = a_run()
    elsewhere = plants(renamed.told, [("public", "renamed")], random.Random(seed))
    assert [plant.told for plant in elsewhere if plant.harm == "rows"] == [None]


def test_A5_a_run_without_schema_changes_has_none_to_plant() -> None:
    run = Run()
    run.row("c", 1)
    absent = [plant.name for plant in plants(run.told, [NAME], random.Random(1)) if plant.told is None]
    assert absent == [
        "a message lost", "two messages of a key swapped", "a value changed that a later message replaces",
        "a copied row changed", "a watermark too high", "a schema change lost", "a schema change twice",
        "a schema change misplaced"]


def test_S3_a_change_that_never_happened_is_found() -> None:
    run = a_run()
    run.history.pop()
    assert "invented" in harms(run.check())


def test_S3_another_op_or_key_than_what_happened_is_found() -> None:
    run = a_run()
    at = next(at for at, one in enumerate(run.history) if one.op == "c")
    for wrong in (run.history[at]._replace(op="u"), run.history[at]._replace(key=("77",))):
        history = [*run.history[:at], wrong, *run.history[at + 1:]]
        assert harms(check(run.told, history, {NAME: list(run.rows.values())})) == {"wrong"}


def test_C7_a_row_of_another_shape_than_its_table_had_is_found() -> None:
    run = a_run()
    where, at = next((where, at) for where, messages in run.told.items() for at, seen in enumerate(messages)
                     if seen.kind == "row" and "more" in seen.columns)
    run.told[where][at] = run.told[where][at]._replace(columns=("id", "note"))
    assert harms(run.check()) == {"schema"}


def test_C7_a_schema_change_outside_partition_0_is_found() -> None:
    run = a_run()
    at = next(at for at, seen in enumerate(run.told[run.topic, 0]) if seen.kind == "schema")
    run.told[run.topic, 0][at] = run.told[run.topic, 0][at]._replace(partition=1)
    assert "schema" in harms(run.check())


def test_K3_a_key_in_two_partitions_is_found() -> None:
    run = a_run()
    moved = next(seen for seen in run.told[run.topic, 0] if seen.kind == "row")
    run.told[run.topic, 0].remove(moved)
    run.told[run.topic, 1].insert(0, moved._replace(partition=1))
    assert "order" in harms(run.check())


def test_K2_a_tombstone_that_lost_its_delete_is_found() -> None:
    run = a_run()
    where, at = next((where, at) for where, messages in run.told.items() for at, seen in enumerate(messages)
                     if seen.kind == "tombstone")
    run.told[where].append(run.told[where].pop(at))
    assert "order" in harms(run.check())


def test_K4_a_row_behind_its_watermark_is_found() -> None:
    run = a_run()
    run.watermark(run.lsn - 10)
    assert run.check() == []
    run.watermark(run.lsn + 10)
    run.row("c", 99, text="x")
    assert harms(run.check()) == {"late"}


def test_K4_a_first_copy_is_complete_before_a_watermark_and_a_renamed_table_is_told_again_behind_it() -> None:
    """A watermark speaks of changes; a copy under a name that is new to its table tells again what was told."""
    for table, harm in ((NAME, {"late"}), (("turned_3", "inside"), set[str]())):
        run = Run(table=table)
        run.held(1, "there")
        run.watermark(200)
        run.copied(1, "there", 150)
        assert harms(run.check()) == harm


def test_K1_a_message_that_cannot_be_understood_is_found() -> None:
    run = a_run()
    for value in (b"{", b"[]", b"{}", b'{"op":"m","message":{"prefix":"x"}}'):
        assert understand("t", 0, Record(value)).kind == "malformed"
    run.told[run.topic, 0].append(understand(run.topic, 0, Record(b"{")))
    assert harms(run.check()) == {"malformed"}


def test_S6_rows_of_a_table_without_a_key_count_as_often_as_they_are_there() -> None:
    run = Run()
    for seq, (before, after) in enumerate([(None, {"v": 1}), (None, {"v": 1}), ({"v": 1}, {"v": 2})]):
        op = "c" if before is None else "u"
        run.history.append(Happened(7, NAME, Place(5, seq), op, None, ("v",), before=before, after=after))
        run.send(0, Record(run._value(Place(5, seq), op=op, before=before, after=after)), Place(5, seq))
    assert check(run.told, run.history, {NAME: [{"v": 1}, {"v": 2}]}) == []
    assert harms(check(run.told, run.history, {NAME: [{"v": 1}, {"v": 1}, {"v": 2}]})) == {"rows"}


def test_S6_a_value_that_nobody_knows_is_not_invented() -> None:
    run = Run()
    run.row("u", 1, sent=False, note="known to the database only")
    assert harms(run.check()) == {"rows"}


def test_S4_rows_of_a_copy_come_first_and_changes_go_on_from_them() -> None:
    run = Run()
    for number in range(6):
        run.held(number, "copied")
        run.copied(number, "copied", 50)
    run.row("u", 1, sent=False)
    run.row("u", 2, note="changed")
    run.row("d", 3)
    assert run.check() == []
    assert counts(run.told)["r"] == 6
    lost = {where: [seen for seen in messages if seen.key != b'{"id":5}'] for where, messages in run.told.items()}
    assert harms(run.check(lost)) == {"rows"}


def test_S5_a_row_of_a_window_stands_behind_what_its_partition_has_of_its_key() -> None:
    run = Run()
    run.row("c", 1, note="before the window")
    run.copied(1, "before the window", run.lsn)
    assert run.check() == []
    run.copies -= 1
    run.copied(1, "before the window", run.lsn)
    assert harms(run.check()) == {"doubled", "order"}


def test_S4_the_first_copy_of_a_table_stands_before_its_watermarks_and_later_ones_need_not() -> None:
    run = Run()
    run.held(1, "there")
    run.copied(1, "there", 50)
    run.watermark(200)
    run.copied(1, "there", 60, source=b"d" * 16)
    assert run.check() == []
    run.copied(1, "there", 50)
    assert harms(run.check()) == {"late"}


def test_K4_a_watermark_that_goes_back_is_found() -> None:
    run = a_run()
    run.watermark(run.lsn - 40)
    assert harms(run.check()) == {"order"}


def test_S12_a_truncation_that_one_partition_lacks_is_found() -> None:
    run = Run()
    for number in range(10):
        run.row("c", number, note="n")
    run.commit()
    run.truncate()
    assert run.check() == []
    assert counts(run.told)["truncate t"] == PARTITIONS
    where = (run.topic, PARTITIONS - 1)
    rest = [seen for seen in run.told[where] if seen.kind != "truncate"]
    assert harms(run.check({**run.told, where: rest})) == {"lost"}


def test_S12_rows_that_stay_under_a_name_that_nobody_has_are_found() -> None:
    run = a_run()
    other = ("public", "gone")
    moved = {("shop.public.gone", p): [
        seen._replace(topic="shop.public.gone", table=other, place=Place(5, n)) for n, seen in enumerate(messages)
        if seen.op == "r"] for (_, p), messages in run.told.items()}
    found = [one for one in run.check({**run.told, **moved}) if one.harm == "rows"]
    assert [one.where for one in found] == ["public.gone"]
