"""What commands print in any width: no word is broken, no value is hidden, YAML in blocks [A2]."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from millrace.cli.output import _dump, in_a_line, table_of

COLUMNS = ("changefeed", "state", "why", "source", "maintainer", "checkpoint", "lag", "waits for", "sink")
ROW = ("orders", "warning", "source shop is retrying: connection to server at 127.0.0.1 refused", "shop", 1,
       "16/B374D848", "unknown", "checkpoint: partition public.orders/0 is behind (12.0 s)",
       "kafka:?format=debezium-json")


def printed(columns: tuple[str, ...], rows: list[tuple[object, ...]], width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table_of(columns, rows))
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160, 300])
def test_A2_no_word_is_broken_and_none_is_lost_in_any_width(width: int) -> None:
    text = printed(COLUMNS, [ROW, ROW], width)
    assert max(map(len, text.splitlines())) <= width
    found = text.replace(":", " ").split()
    wanted = " ".join([*COLUMNS, *map(str, ROW)]).replace(":", " ").split()
    assert set(wanted) <= set(found)


def test_A2_a_table_stays_a_table_while_it_fits_in_80_columns() -> None:
    lines = printed(("table", "state", "why"), [("public.orders", "isolated", "word " * 30)], 80).splitlines()
    assert lines[0].split() == ["table", "state", "why"]
    assert len(lines) > 2


def test_A2_lines_of_a_text_become_one_and_names_keep_their_escapes() -> None:
    assert in_a_line("run:\n  ALTER TABLE a;\n\tSELECT 1") == "run: ALTER TABLE a; SELECT 1"
    assert in_a_line('public."a\nb" waits') == 'public."a\\nb" waits'
    assert in_a_line("\x1b[2J") == "\\x1b[2J"


def test_A2_yaml_stands_in_blocks_in_the_order_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    _dump({"total": 1, "items": [{"name": "shop", "tables": ["a", "b"], "why": "x" * 200}]}, "yaml")
    assert capsys.readouterr().out == (
        f"total: 1\nitems:\n- name: shop\n  tables:\n  - a\n  - b\n  why: {'x' * 200}\n")
