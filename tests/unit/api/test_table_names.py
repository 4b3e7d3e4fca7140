"""Tables by their names, where machines know oids [C9]."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.api.table_names import name_tables
from millrace.changefeed.capture import Capture
from millrace.changefeed.coordinator import Reign

STEP = "have it copied: millrace table copy SCHEMA.NAME --source shop"


@pytest.mark.parametrize(("name", "said"), [
    ("orders", "public.orders"), ("two words", "SCHEMA.NAME")], ids=["plain", "to be quoted"])
def test_C9_the_next_step_of_a_table_that_needs_a_copy_names_the_table(name: str, said: str) -> None:
    tables = {7: SimpleNamespace(schema="public", name=name)}
    reader = SimpleNamespace(state=SimpleNamespace(tables=tables))
    reign = cast(Reign, SimpleNamespace(hosts={"shop": SimpleNamespace(reader=reader)}))
    items: list[dict[str, Any]] = [
        {"oid": 7, "needs_copy": {"why": "gone", "next_step": STEP}}, {"oid": 7, "needs_copy": None}]
    asyncio.run(name_tables(cast(Capture, None), reign, "shop", items))
    assert [one["table"] for one in items] == [f"public.{name}"] * 2
    assert items[0]["needs_copy"] == {"why": "gone", "next_step": STEP.replace("SCHEMA.NAME", said)}
    assert items[1]["needs_copy"] is None
