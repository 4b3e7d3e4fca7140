"""Options by name, and positions as a checkpoint keeps them [P1]."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millrace.core.sources.table_history import Cut
from millrace.errors import DataLost, InvalidOption, NewerFormat
from millrace.model.tables import Column, TableSchema
from millrace.pipeline.datasource.columns import META, spark_schema
from millrace.pipeline.datasource.options import OPTIONS, OnTruncate, parse_options
from millrace.pipeline.datasource.positions import begin_of, decode_position, encode_position, position_of

NEEDED = {"kafka.bootstrap.servers": "a:1, b:2", "source": "shop", "table": "orders"}
TOPIC = UUID(int=5)


def test_P1_defaults() -> None:
    options = parse_options(NEEDED, streaming=True)
    assert options.bootstrap == ("a:1", "b:2")
    assert (options.starting, options.ending, options.offsets_max) == ("earliest", "latest", None)
    assert (options.fail_on_data_loss, options.include_copy, options.on_truncate) == (True, True, OnTruncate.FAIL)


def test_P1_names_are_told_in_any_case_and_by_both_names_of_the_servers() -> None:
    options = parse_options({"bootstrap.servers": "a:1", "source": "s", "TABLE": "t", "MAXOFFSETSPERTRIGGER": "7"})
    assert (options.table, options.offsets_max) == ("t", 7)
    with pytest.raises(InvalidOption, match="given twice"):
        parse_options({**NEEDED, "bootstrap.servers": "c:3"})


@pytest.mark.parametrize(("given", "streaming", "said"), [
    ({"endingOffsets": "latest"}, True, "endingOffsets has no meaning for a streaming query"),
    ({"idleWaitMs": "5"}, False, "idleWaitMs has no meaning for a batch"),
    ({"startingOffsets": '{"0": "x"}'}, True, "startingOffsets: {partition: offset} with numbers"),
    ({"endingOffsets": '{"0": -2}'}, False, "cannot be earliest"),
    ({"source": " "}, False, "source is empty"),
])
def test_P1_what_is_wrong_is_named(given: dict[str, str], streaming: bool, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        parse_options({**NEEDED, **given}, streaming=streaming)


def test_P1_metadata_columns_do_not_hide_the_tables_own() -> None:
    table = TableSchema(7, "public", "t", "d", (Column("id", 23, is_key=True), Column("_seq", 23)))
    with pytest.raises(InvalidOption, match="has a column _seq: set option metadataPrefix"):
        spark_schema(table, "_")
    assert spark_schema(table, "meta_").fieldNames()[:4] == ["id", "_seq", "meta_change_type", "meta_generation"]


def test_P1_every_option_and_column_is_in_the_docs() -> None:
    page = (Path(__file__).parents[4] / "docs" / "spark.md").read_text()
    assert [name for name, option in OPTIONS.items() if f"| `{name}` |" not in page or option.meaning not in page] == []
    assert [name for name, (_, meaning) in META.items() if f"| `_{name}` |" not in page or meaning not in page] == []


def test_P1_positions_come_back_from_a_checkpoint() -> None:
    position = position_of(TOPIC, Cut(2, 812, (17, 3)), began=position_of(TOPIC, Cut(2, 0, (0, 0)), initial=True))
    stored: dict[str, Any] = json.loads(json.dumps(encode_position(position)))
    assert decode_position(stored, TOPIC) == position
    assert decode_position(stored, TOPIC).cut == Cut(2, 812, (17, 3))
    with pytest.raises(DataLost, match="was made anew"):
        decode_position(stored, UUID(int=6))
    with pytest.raises(NewerFormat):
        decode_position({**stored, "version": 2}, TOPIC)
    with pytest.raises(InvalidOption):
        decode_position({"version": 1, "0": 3}, TOPIC)


def test_P1_a_first_batch_begins_where_its_end_says() -> None:
    began = position_of(TOPIC, Cut(1, 5, (1,)), initial=True)
    asked_again = position_of(TOPIC, Cut(1, 9, (4,)), initial=True)
    end = position_of(TOPIC, Cut(1, 7, (3,)), began=began)
    assert begin_of(asked_again, end) == began
    assert begin_of(end, position_of(TOPIC, Cut(1, 9, (4,)))) == end
