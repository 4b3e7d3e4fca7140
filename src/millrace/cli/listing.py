"""Rows for people in any width: a table while every word fits, else each row as lines of `column: value`.

In: columns, rows of text, the width of the terminal. Out: what rich prints. Promise: no word is broken that is not
longer than a line.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

GAP = 1                                  # between two columns


class Listing:
    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
        self.columns, self.rows, self.title = columns, rows, title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = fit(self.columns, self.rows, options.max_width)
        if widths is None:
            yield from self._blocks()
        else:
            yield self._table(widths)

    def _table(self, widths: Sequence[int]) -> Table:
        table = Table(title=self.title, box=None, header_style="bold", pad_edge=False, title_justify="left",
                      padding=(0, GAP, 0, 0))
        for column, width in zip(self.columns, widths, strict=True):
            table.add_column(column, overflow="fold", width=width)
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def _blocks(self) -> RenderResult:
        if self.title:
            yield Text(self.title, style="italic")
        for number, row in enumerate(self.rows):
            if number:
                yield Text("")
            for column, cell in zip(self.columns, row, strict=True):
                if cell:
                    yield Text.assemble((f"{column}: " if column else "", "bold"), cell, overflow="fold")


def fit(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Widths in which no word is broken; None: there are none. What is left goes to the columns that want most."""
    texts = [[column, *(row[n] for row in rows)] for n, column in enumerate(columns)]
    least = [max((cell_len(word) for text in some for word in text.split()), default=0) for some in texts]
    wanted = [max(map(cell_len, some)) for some in texts]
    left = width - GAP * (len(columns) - 1) - sum(least)
    if left < 0:
        return None
    found = list(least)
    for n in sorted(range(len(columns)), key=lambda n: wanted[n] - least[n]):
        found[n] += min(left, wanted[n] - least[n])
        left -= found[n] - least[n]
    return found
