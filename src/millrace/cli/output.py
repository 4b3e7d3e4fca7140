"""What commands print: JSON is the API's body unchanged, YAML the same, a table for people [A2]."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text
from ruamel.yaml import YAML

Form = Literal["table", "json", "yaml"]


def console() -> Console:
    """Standard output for people; wide when it is not a terminal, so that nothing is cut."""
    return Console(width=None if sys.stdout.isatty() else 160)


def show(value: Any, form: Form, table: Table) -> None:
    if form == "table":
        console().print(table)
    else:
        _dump(value, form)


def tell(value: Any, form: Form, *lines: str) -> None:
    """What a command has done: the body of the answer, or lines for people."""
    if form != "table":
        _dump(value, form)
        return
    for line in lines:
        console().print(line, soft_wrap=True, markup=False, highlight=False)


def _dump(value: Any, form: Form) -> None:
    if form == "json":
        print(json.dumps(value, indent=2))
        return
    out = io.StringIO()
    YAML(typ="safe").dump(value, out)
    print(out.getvalue(), end="")


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> Table:
    table = Table(title=title, box=None, header_style="bold", pad_edge=False, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else in_a_line(str(cell))) for cell in row))
    return table


def in_a_line(text: str) -> str:
    """What would break a line, or be obeyed by a terminal, as its escape: names of tables may hold anything."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
