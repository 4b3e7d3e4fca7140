"""Copies under way, as the tables of a changefeed show them [S4, S12]."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.api.table_copies import add_copies
from millrace.changefeed.coordinator import Reign
from millrace.core.sources.registry import SourceState
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.sources import ChunkSpan, CopyPlanned
from millrace.source.reading.status import CopyStatus, ReaderStatus

SPEC = ChangefeedSpec(id="orders", source="shop", sink="kafka:?format=json", tables=("public.*",))
WHOLE, ONE_KEY = (ChunkSpan(7, by_key=True),), (ChunkSpan(7, low_key=("1",), high_key=("1",), by_key=True),)


def shown(status: CopyStatus, *, spans: tuple[ChunkSpan, ...] = WHOLE, feeds: tuple[str, ...] = (), why: str = "",
          state: str = "working") -> dict[str, Any]:
    source = SourceState("shop")
    source.replay(CopyPlanned(status.copy, 1, status.oid, "c", 1, "watermark", 0, spans, feeds, why))
    reader = SimpleNamespace(status=ReaderStatus(copies=[status]), state=source)
    reign = cast(Reign, SimpleNamespace(hosts={"shop": SimpleNamespace(reader=reader)}))
    items = [{"oid": 7, "state": state, "copying": False}, {"oid": 8, "state": "working", "copying": False}]
    add_copies(reign, SPEC, items)
    assert items[1] == {"oid": 8, "state": "working", "copying": False, "copy": None}
    return items[0]


def copying(state: Any = "running") -> CopyStatus:
    return CopyStatus(3, 7, "watermark", state, 0.4712, 1234, 9, 2.5, "waits for a writer")


def test_S12_a_copy_under_way_is_shown_with_rows_percentage_and_what_it_is_for() -> None:
    found = shown(copying(), why="the primary key was changed")
    assert found == {"oid": 7, "state": "copying", "copying": True, "copy": {
        "copy": 3, "state": "running", "percent": 47.1, "rows": "1234", "eta_s": 2.5, "why": "waits for a writer",
        "because": "the primary key was changed"}}


@pytest.mark.parametrize("state", ["isolated", "needs_copy", "absent"])
def test_A9_a_worse_state_is_not_hidden_by_a_copy(state: str) -> None:
    found = shown(copying("waiting"), state=state)
    assert (found["state"], found["copying"], found["copy"]["state"]) == (state, True, "waiting")


def test_S4_what_is_done_for_others_or_of_single_keys_is_no_copy_of_the_table() -> None:
    for found in (shown(copying("done")), shown(copying(), feeds=("another",)), shown(copying(), spans=ONE_KEY)):
        assert (found["state"], found["copying"], found["copy"]) == ("working", False, None)
    assert shown(copying(), feeds=("another", "orders"))["state"] == "copying"


def test_A9_of_a_source_without_a_reader_nothing_is_said() -> None:
    items: list[dict[str, Any]] = [{"oid": 7, "state": "working", "copying": False}]
    add_copies(cast(Reign, SimpleNamespace(hosts={})), SPEC, items)
    assert items[0]["copy"] is None
