from __future__ import annotations

import msgspec
import pytest

from millrace.core.feeds.feeds import FeedsDecision, FeedsState, office
from millrace.errors import (
    ChangefeedExists,
    InvalidExpression,
    InvalidRequest,
    InvalidTableRule,
    PositionRefused,
    Refused,
    UnknownChangefeed,
)
from millrace.model.changefeeds import ChangefeedSpec, FeedError, TableSettings
from millrace.model.sources import SourceRemoved

SPEC = ChangefeedSpec(id="orders", source="shop", sink="kafka:?format=json", tables=("public.*",))


def do(state: FeedsState, decision: FeedsDecision[object]) -> int:
    for record in decision.records:
        state.replay(record)
    return len(decision.records)


def made() -> FeedsState:
    state = FeedsState()
    do(state, state.create(SPEC, wall_ms=1))
    return state


def test_C1_create_pause_resume_remove() -> None:
    state = made()
    entry = state.entry("orders")
    assert (entry.state, entry.runs) == ("normal", True)
    assert do(state, state.pause("orders")) == 1
    assert do(state, state.pause("orders")) == 0, "asking twice is no error and no record"
    assert (entry.state, entry.runs) == ("stopped", False)
    do(state, state.resume("orders", position=44))
    assert (entry.runs, entry.position) == (True, 44)
    assert do(state, state.resume("orders")) == 0
    do(state, state.remove("orders"))
    assert (entry.state, entry.runs) == ("removed", False)
    with pytest.raises(InvalidRequest, match="being removed"):
        state.pause("orders")
    do(state, state.removed("orders"))
    with pytest.raises(UnknownChangefeed):
        state.entry("orders")
    assert office("orders") == "changefeed/orders"


def test_C8_a_failed_changefeed_stays_failed_until_somebody_resumes_it() -> None:
    state = made()
    error = FeedError(code="sink_denied", kind="fail")
    do(state, state.fail("orders", error))
    assert (state.entry("orders").state, state.entry("orders").error) == ("failed", error)
    assert do(state, state.fail("orders", error)) == 0
    do(state, state.resume("orders"))
    assert state.entry("orders").state == "normal"


def test_P9_work_beside_dispatchers_needs_a_changefeed_at_rest() -> None:
    state = made()
    do(state, state.place("orders", capture=1, incarnation=1))
    with pytest.raises(Refused, match="pause it"):
        state.place_at_rest("orders", capture=2, incarnation=1)
    do(state, state.pause("orders"))
    before = state.epoch_floor
    decision = state.place_at_rest("orders", capture=2, incarnation=1)
    do(state, decision)
    assert decision.reply.epoch > before
    do(state, state.remove("orders"))
    with pytest.raises(InvalidRequest, match="being removed"):
        state.place_at_rest("orders", capture=2, incarnation=1)


def test_C1_created_paused_it_does_not_run() -> None:
    state = FeedsState()
    do(state, state.create(SPEC, wall_ms=1, paused=True))
    assert state.entry("orders").state == "stopped"


def test_C1_what_cannot_be_is_refused() -> None:
    state = made()
    with pytest.raises(ChangefeedExists):
        state.create(SPEC, wall_ms=2)
    with pytest.raises(PositionRefused, match="runs; pause it"):
        state.resume("orders", position=4)
    with pytest.raises(InvalidRequest, match="not below 0"):
        state.resume("orders", position=-1)
    with pytest.raises(InvalidRequest, match="not being removed"):
        state.removed("orders")
    do(state, state.remove("orders"))
    with pytest.raises(ChangefeedExists, match="is being removed"):
        state.create(SPEC, wall_ms=2)


def test_C1_a_spec_changes_without_a_stop_but_not_its_ends() -> None:
    state = made()
    other = msgspec.structs.replace(SPEC, tables=("public.a",))
    assert state.change(SPEC).reply is False
    assert do(state, state.change(other)) == 1
    assert state.entry("orders").spec == other
    with pytest.raises(InvalidRequest, match="source and sink"):
        state.change(msgspec.structs.replace(other, sink="file:///x"))


def test_C1_what_is_said_to_a_running_changefeed_needs_a_maintainer_that_hears_it() -> None:
    state = made()
    entry = state.entry("orders")
    do(state, state.change(msgspec.structs.replace(SPEC, tables=("public.a",))))
    assert not entry.renew, "nobody has it yet: whoever is placed reads it"
    do(state, state.place("orders", capture=1, incarnation=1))
    do(state, state.change(SPEC))
    assert entry.renew
    do(state, state.place("orders", capture=1, incarnation=1))
    assert not entry.renew
    do(state, state.pause("orders"))
    do(state, state.resume("orders"))
    assert not entry.renew
    do(state, state.pause("orders"))
    do(state, state.resume("orders", position=44))
    assert entry.renew


def test_C2_a_dispatcher_begins_with_what_its_maintainer_has_settled_and_not_with_what_was_said_since() -> None:
    state = made()
    entry = state.entry("orders")
    with pytest.raises(Refused, match="next maintainer"):
        entry.spec_for(1)
    do(state, state.place("orders", capture=1, incarnation=1))
    assert entry.spec_for(1) == SPEC
    other = msgspec.structs.replace(SPEC, tables=("public.a",))
    do(state, state.change(other))
    with pytest.raises(Refused):
        entry.spec_for(1)
    do(state, state.place("orders", capture=2, incarnation=1))
    assert entry.spec_for(2) == other
    with pytest.raises(Refused):
        entry.spec_for(1)


def test_C1_a_wish_for_another_position_stands_until_another_one_replaces_it() -> None:
    state = made()
    entry = state.entry("orders")
    with pytest.raises(PositionRefused, match="pause it"):
        state.resume("orders", position=44)
    for position in (44, 0, 55):
        do(state, state.pause("orders"))
        do(state, state.resume("orders", position=position))
        assert (entry.position, entry.rewinds) == ((44, 1) if position < 55 else (55, 2))


def test_C2_a_maintainers_epoch_only_rises_also_over_removal() -> None:
    state = made()
    do(state, state.place("orders", capture=1, incarnation=1))
    first = state.entry("orders").place
    do(state, state.remove("orders"))
    do(state, state.removed("orders"))
    do(state, state.create(SPEC, wall_ms=3))
    do(state, state.place("orders", capture=2, incarnation=1))
    second = state.entry("orders").place
    assert first is not None
    assert second is not None
    assert second.epoch > first.epoch


def test_C1_records_of_sources_are_not_ours() -> None:
    state = made()
    state.replay(SourceRemoved("shop"))
    assert list(state.feeds) == ["orders"]


@pytest.mark.parametrize(("change", "says"), [
    ({"id": "No!"}, "changefeed id 'No!'"), ({"id": ""}, "changefeed id"), ({"source": ""}, "names no source"),
    ({"tables": ()}, "at least one table rule"), ({"sink": "ftp://x"}, "'ftp' is no sink; there is kafka:"),
    ({"settings": (TableSettings(tables="!a.b"),)}, r"settings\[0\].tables: name the tables"),
    ({"settings": (TableSettings(tables="a.b"),) * 1001}, "settings: 1001 entries"),
    ({"tables": ("a.b",) * 1001}, "tables: 1001 rules"),
])
def test_C8_a_bad_spec_is_refused_with_the_field(change: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        FeedsState().create(msgspec.structs.replace(SPEC, **change), wall_ms=1)


@pytest.mark.parametrize(("settings", "says"), [
    (TableSettings(tables="a.b", filter="n > rand()"), r"\[0\]\.filter: rand is not.*\nn > rand\(\)\n {4}\^{4}$"),
    (TableSettings(tables="a.b", projection=("id", "n + 1")), r"settings\[0\]\.projection\[1\]: give it a name"),
])
def test_P4_a_bad_expression_is_refused_with_its_place(settings: TableSettings, says: str) -> None:
    with pytest.raises(InvalidExpression, match=says):
        FeedsState().create(msgspec.structs.replace(SPEC, settings=(settings,)), wall_ms=1)


def test_C8_a_bad_table_rule_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidTableRule, match=r"tables\[1\]: .*\npublic\n      \^$"):
        FeedsState().create(msgspec.structs.replace(SPEC, tables=("a.b", "public")), wall_ms=1)
