"""Sources as their records replay, and the decisions about them [S1, S9, C1, L28]."""

from __future__ import annotations

from typing import TypeVar

import pytest

from millrace.core.decision import CoordinatorDecision, SourceDecision
from millrace.core.sources.registry import (
    CoordinatorState,
    SourceState,
    copy_topic,
    office,
    progress_topic,
    publication_name,
    slot_name,
    table_topic,
    topic_prefix,
)
from millrace.errors import InvalidRequest, InvalidTableRule, SourceExists, UnknownSource
from millrace.limits import WRITER_EPOCH_MAX
from millrace.model.sources import ChunkSpan, SourceSpec, decode_coordinator, decode_source, encode_record

T = TypeVar("T")
SHOP = SourceSpec(name="shop", url="postgresql://app@db/shop")


def coordinated(state: CoordinatorState, decision: CoordinatorDecision[T]) -> T:
    for record in decision.records:
        state.replay(decode_coordinator(encode_record(record)))
    return decision.reply


def write(state: SourceState, decision: SourceDecision[T]) -> T:
    for record in decision.records:
        state.replay(decode_source(encode_record(record)))
    return decision.reply


def with_shop() -> CoordinatorState:
    state = CoordinatorState()
    coordinated(state, state.create(SHOP, wall_ms=5))
    return state


# -- names -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["a", "shop-2", "shop_2", "0", "x" * 40])
def test_S1_source_names(name: str) -> None:
    CoordinatorState().create(SourceSpec(name=name, url="u"), wall_ms=0)


@pytest.mark.parametrize("name", ["", "x" * 41, "Shop", "a.b", "a/b", "a b", "ä", "..", "a\n", "${x}"])
def test_S1_names_that_cannot_be_parts_of_topics_and_slots_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="source name"):
        CoordinatorState().create(SourceSpec(name=name, url="u"), wall_ms=0)


def test_S1_names_that_follow_from_a_source() -> None:
    assert (office("shop"), progress_topic("shop")) == ("source/shop", "__millrace.shop.progress")
    assert (table_topic("shop", 16), copy_topic("shop", 3)) == ("__millrace.shop.16", "__millrace.shop.copy.3")
    assert topic_prefix("shop") == "__millrace.shop."
    spec = SourceSpec(name="my-shop", url="u")
    assert (slot_name(spec), publication_name(spec)) == ("millrace_my_shop", "millrace_my_shop")
    assert slot_name(SourceSpec(name="a", url="u", slot="mine")) == "mine"


# -- the coordinator -------------------------------------------------------------------------------------------------
def test_S1_a_source_is_created_once() -> None:
    state = with_shop()
    assert state.entry("shop").spec == SHOP
    with pytest.raises(SourceExists, match="'shop' exists"):
        state.create(SHOP, wall_ms=6)


def test_S1_two_sources_cannot_share_a_slot_of_one_database() -> None:
    state = CoordinatorState()
    coordinated(state, state.create(SourceSpec(name="a-b", url="u"), wall_ms=0))
    with pytest.raises(SourceExists, match="belongs to source 'a-b'"):
        state.create(SourceSpec(name="a_b", url="u"), wall_ms=0)
    state.create(SourceSpec(name="a_b", url="another"), wall_ms=0)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"url": ""}, InvalidRequest),
        ({"tables": ("orders",)}, InvalidTableRule),
        ({"carry_whole": ("a.b.c",)}, InvalidTableRule),
        ({"slot": "My Slot"}, InvalidRequest),
        ({"publication": "x" * 64}, InvalidRequest),
        ({"partitions": 17}, InvalidRequest),
        ({"partitions": -1}, InvalidRequest),
        ({"wal_budget_bytes": -1}, InvalidRequest),
    ],
)
def test_S1_a_spec_that_cannot_work_is_refused(changed: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        CoordinatorState().create(SourceSpec(**{"name": "shop", "url": "u", **changed}), wall_ms=0)  # type: ignore[arg-type]


def test_S1_removal_is_a_state_until_nothing_is_left() -> None:
    state = with_shop()
    with pytest.raises(InvalidRequest, match="not being removed"):
        state.removed("shop")
    coordinated(state, state.remove("shop"))
    assert state.entry("shop").removing
    assert state.remove("shop").records == ()
    with pytest.raises(SourceExists, match="being removed"):
        state.create(SHOP, wall_ms=0)
    coordinated(state, state.removed("shop"))
    with pytest.raises(UnknownSource, match="no source is named 'shop'"):
        state.entry("shop")


def test_C1_every_placement_has_a_greater_epoch() -> None:
    state = with_shop()
    one = coordinated(state, state.place("shop", capture=1, incarnation=4))
    two = coordinated(state, state.place("shop", capture=2, incarnation=1))
    assert (one.epoch, two.epoch, state.entry("shop").epoch) == (1, 2, 2)
    assert state.entry("shop").placed == two


def test_C1_a_source_of_the_same_name_does_not_begin_below_the_fences_of_the_last() -> None:
    state = with_shop()
    for _ in range(3):
        coordinated(state, state.place("shop", capture=1, incarnation=1))
    coordinated(state, state.remove("shop"))
    coordinated(state, state.removed("shop"))
    coordinated(state, state.create(SHOP, wall_ms=9))
    assert coordinated(state, state.place("shop", capture=1, incarnation=1)).epoch == 4


# -- one source ------------------------------------------------------------------------------------------------------
def test_L28_a_writer_id_lasts_until_its_epochs_are_used_up() -> None:
    state = SourceState("shop")
    write(state, state.take_writer(5, 700))
    assert state.writer(5) == (700, 0)
    assert state.take_writer(5 + WRITER_EPOCH_MAX, 701).records == ()
    assert state.fences(6) == ((700, 1),)
    with pytest.raises(InvalidRequest, match="used before"):
        state.take_writer(6 + WRITER_EPOCH_MAX, 700)
    write(state, state.take_writer(6 + WRITER_EPOCH_MAX, 701))
    assert state.fences(6 + WRITER_EPOCH_MAX) == ((700, WRITER_EPOCH_MAX + 1), (701, 0))


def test_S9_a_generation_only_rises() -> None:
    state = SourceState("shop")
    write(state, state.raise_generation(generation=2, reason="lost", at=7, system_id="s", timeline=1))
    assert (state.generation, state.raised and state.raised.at) == (2, 7)
    with pytest.raises(InvalidRequest, match="not above 2"):
        state.raise_generation(generation=2, reason="lost", at=7, system_id="s", timeline=1)


def test_S5_a_table_keeps_its_topic_and_partitions() -> None:
    state = SourceState("shop")
    added = write(state, state.add_table(oid=16, schema="public", name="a", partitions=4))
    assert (added.topic, added.partitions) == ("__millrace.shop.16", 4)
    again = state.add_table(oid=16, schema="public", name="a", partitions=8)
    assert (again.records, again.reply.partitions) == ((), 4)
    write(state, state.set_table_state(16, "needs_copy", "why"))
    write(state, state.add_table(oid=16, schema="public", name="renamed", partitions=8))
    assert (state.tables[16].name, state.tables[16].partitions, state.tables[16].state) == ("renamed", 4, "needs_copy")
    with pytest.raises(InvalidRequest, match="0 partitions"):
        state.add_table(oid=17, schema="public", name="b", partitions=0)
    write(state, state.drop_table(16, "dropped"))
    assert state.tables == {}
    assert state.drop_table(16, "dropped").records == ()


def test_S9_the_state_of_a_table_carries_its_reason() -> None:
    state = SourceState("shop")
    write(state, state.add_table(oid=16, schema="public", name="a", partitions=1))
    assert write(state, state.set_table_state(16, "needs_copy", "data lost"))
    assert (state.tables[16].state, state.tables[16].reason) == ("needs_copy", "data lost")
    assert not state.set_table_state(16, "needs_copy", "data lost").reply
    assert state.set_table_state(99, "dropped").records == ()


def test_S4_a_copy_goes_to_a_topic_of_its_own_with_the_partitions_of_its_table() -> None:
    state = SourceState("shop")
    write(state, state.raise_generation(generation=1, reason="begins", at=7, system_id="s", timeline=1))
    write(state, state.add_table(oid=16, schema="public", name="a", partitions=3))
    number = write(state, state.plan_copy(16, kind="snapshot", at=7, chunks=(ChunkSpan(16),)))
    copy = state.copies.by_id[number]
    assert (copy.topic, copy.partitions, copy.generation) == (f"__millrace.shop.copy.{number}", 3, 1)
    with pytest.raises(InvalidRequest, match="no table with oid 17"):
        state.plan_copy(17, kind="watermark", chunks=(ChunkSpan(17),))


@pytest.mark.parametrize("dropped_first", [False, True])
def test_S4_copies_of_a_dropped_table_are_over(dropped_first: bool) -> None:
    state = SourceState("shop")
    write(state, state.raise_generation(generation=1, reason="begins", at=50, system_id="1", timeline=1))
    write(state, state.add_table(oid=10, schema="public", name="t", partitions=2))
    if dropped_first:
        write(state, state.set_table_state(10, "dropped", "the table was dropped"))
    copy = write(state, state.plan_copy(10, kind="snapshot", at=50, chunks=(ChunkSpan(10),)))
    if not dropped_first:
        assert state.copies.next_tasks(1, running=(), limit=2)
        write(state, state.set_table_state(10, "dropped", "the table was dropped"))
    assert state.copies.by_id[copy].is_done
    assert not state.copies.by_id[copy].needs_snapshot
    assert state.copies.next_tasks(1, running=(), limit=2) == []
