"""What commands print: JSON is the API's body unchanged, YAML the same, a table for people [A2]."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rich.console import Console
from ruamel.yaml import YAML

from millrace.cli.listing import Listing

YAML_WIDTH = 1 << 16                         # no value is folded over lines
Form = Literal["table", "json", "yaml"]


def console() -> Console:
    """Standard output for people; wide when it is not a terminal, so that nothing is cut."""
    return Console(width=None if sys.stdout.isatty() else 160)


def show(value: Any, form: Form, table: Listing) -> None:
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
    yaml = YAML()                            # in blocks, in the order of the answer
    yaml.width = YAML_WIDTH
    yaml.dump(value, out)
    print(out.getvalue(), end="")


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> Listing:
    return Listing(columns, [["-" if cell is None else in_a_line(str(cell)) for cell in row] for row in rows], title)


def in_a_line(text: str) -> str:
    """Lines of a text as one. What a quoted name holds, or a terminal would obey, as its escape: names of tables may
    hold anything."""
    parts = re.split(r'("[^"]*")', text)
    text = "".join(part if n % 2 else re.sub(r"\s*[\r\n\t]+\s*", " ", part) for n, part in enumerate(parts))
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
