from __future__ import annotations

from millrace.core.feeds.watermarks import holds_in
from millrace.model.spans import TableId

A, B, C = (TableId("shop", oid) for oid in (1, 2, 3))


def test_K4_a_watermark_holds_where_no_isolated_table_writes() -> None:
    topics = {A: "a", B: "all", C: "all"}
    assert holds_in(topics, {A, B, C}) == {"a", "all"}
    assert holds_in(topics, {A, B}) == {"a"}
    assert holds_in(topics, {B, TableId("shop", 9)}) == set(), "of a table that is not taken any more nothing is known"
    assert holds_in({A: "a", B: "b"}, {B}) == {"b"}
