"""Every example of every type, as Debezium's engine wrote it: values and schemas, without Java [K6, S6].

The fixture is recorded from Debezium, and compared with it, by tests/source/test_debezium_beside.py.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from millrace.model.tables import Column, TableSchema
from millrace.sink.kafka.choice import format_of
from millrace.sink.kafka.formats import Origin
from millrace.sink.kafka.images import Images
from millrace.sink.uri import parse_sink
from millrace.wire.pg.chunks import join
from millrace.wire.pg.messages import Rows
from millrace.wire.pg.pgoutput import Decoder
from support_debezium_compare import Columns, Comparison, wanted_differences
from support_debezium_corpus import OPTIONS, TYPES
from support_debezium_examples import read_examples
from support_pgoutput import begin, commit, insert, relation, xlog

EXAMPLES = read_examples()
ORIGIN = Origin("peer", "db")


def _written(case: str, options: str) -> list[dict[str, Any]]:
    """Our messages, with schemas, of the texts that PostgreSQL printed."""
    example = EXAMPLES[case]
    column = msgspec.convert(example["column"], Column)
    table = TableSchema(5, "public", f"t_{case}", "d", (Column("id", 23, -1, True), column))
    rows = [insert(5, [b"%d" % i, text.encode()]) for i, text in enumerate(example["texts"])]
    messages = [begin(100, 0, 7), relation(table), *rows, commit(100, 200, 0)]
    [batch] = [item.batch for item in Decoder(tables=[table]).decode(join([xlog(one) for one in messages])).items
               if isinstance(item, Rows)]
    more = "".join(f"&{key}={value}" for key, value in OPTIONS[options].items())
    form = format_of(parse_sink(f"kafka:?schema=true{more}"), ORIGIN, table)
    found = form.value(Images(batch, table, form.style), copy=False, now_us=0).joined()
    return [json.loads(text) for text in found.to_pylist()]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("case", TYPES)
def test_K6_values_and_schemas_are_those_that_debezium_wrote(case: str, options: str) -> None:
    kind, literals = TYPES[case]
    wanted, columns = EXAMPLES[case][options], Columns(f"t_{case}", {"v": kind}, literals)
    found = Comparison(wanted_differences())
    for place, message in enumerate(_written(case, options)):
        labels = columns.labels("v", {"id": place})
        found.same(message["payload"]["after"]["v"], wanted["values"][place], f"{case} {literals[place]}", *labels)
        schema = message["schema"]["fields"][1]["fields"][1]
        found.same(schema, wanted["schema"], f"schema of {case}", *columns.labels("v"),
                   *(f"schema of {label}" for label in columns.labels("v")))
    assert found.fields == 2 * len(literals)
    assert not found.left


def test_K6_the_examples_reach_every_edge() -> None:
    """Control characters, scales from 0 to 38, fractions of any length, nulls and quotes in arrays, BC, infinities."""
    texts = {case: example["texts"] for case, example in EXAMPLES.items()}
    assert {chr(code) for code in range(1, 32)} <= {char for text in texts["text"] for char in text}
    assert {int(case.rpartition("_")[2]) for case in texts if case.startswith("dec_38_")} >= {0, 6, 7, 19, 37, 38}
    assert {len(text.partition(".")[2]) for text in texts["timestamp"]} >= {0, 1, 6}
    assert any("NULL" in text and '"' in text for text in texts["text_a"])
    assert any("BC" in text for text in texts["date"])
    assert "infinity" in texts["timestamp"]
    assert np.sum([len(found) for found in texts.values()]) > 500
