"""What commands print: JSON is the API's body unchanged, YAML the same, a table for people [A2]."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from ruamel.yaml import YAML

Form = Literal["table", "json", "yaml"]


def console() -> Console:
    """Standard output for people; wide when it is not a terminal, so that nothing is cut."""
    return Console(width=None if sys.stdout.isatty() else 160)


def show(value: Any, form: Form, table: Table) -> None:
    if form == "json":
        print(json.dumps(value, indent=2))
    elif form == "yaml":
        out = io.StringIO()
        YAML(typ="safe").dump(value, out)
        print(out.getvalue(), end="")
    else:
        console().print(table)


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> Table:
    table = Table(title=title, box=None, header_style="bold", pad_edge=False, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    return table
