"""A text with a place in it marked, as refusals show it.

    tables[1]: a '.' between schema and table is missing
    orders
          ^
"""

from __future__ import annotations

from typing import Final

SHOWN_CHARS: Final = 160         # on either side of the place: a line or two of a terminal


def marked(where: str, text: str, at: int, why: str, *, length: int = 1) -> str:
    """`where` names the field, `at` the place in `text`. Of a text of several lines the one with the place is shown."""
    at = min(max(at, 0), len(text))
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    end = len(text) if end < 0 else end
    first, last = max(start, at - SHOWN_CHARS), min(end, at + SHOWN_CHARS)
    before, after = "…" if first > start else "", "…" if last < end else ""
    # One sign for one: what does not print would push the mark off its place.
    shown = "".join(sign if sign.isprintable() else "·" for sign in text[first:last])
    marks = "^" * max(1, min(length, last - at))
    return f"{where}: {why}\n{before}{shown}{after}\n{' ' * (len(before) + at - first)}{marks}"
