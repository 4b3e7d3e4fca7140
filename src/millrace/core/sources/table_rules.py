"""Which tables a source carries: rules as the user wrote them, the last one that matches wins.

    public.*            every table of a schema            "My Schema"."a.b"   quoted: names with dots, spaces, stars
    public.order_*      `*` stands for any characters      "it""s".*           a quote inside quotes is doubled
    !public.tmp_*       what an earlier rule took is left out again

In: rules. Out: yes or no for (schema, table). Promise: unquoted or quoted, a name means exactly itself; nothing folds
case, since the catalogue does not either. A rule that cannot be read is refused with the place of the trouble.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from millrace.errors import InvalidTableRule

_NAME_BYTES_MAX = 63  # PostgreSQL's; a longer name can never match
_BARE = re.compile(r"[^\s\".!]+")


class _Rule(NamedTuple):
    text: str
    takes: bool
    schema: re.Pattern[str]
    table: re.Pattern[str]


class TableRules:
    """Rules in order. Without any rule nothing is taken."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Iterable[str]) -> None:
        self._rules = tuple(_parse(text) for text in rules)

    def takes(self, schema: str, table: str) -> bool:
        rule = self.deciding(schema, table)
        return rule is not None and not rule.lstrip().startswith("!")

    def deciding(self, schema: str, table: str) -> str | None:
        """The rule that decides, as it was written: for messages that say why."""
        for rule in reversed(self._rules):
            if rule.schema.fullmatch(schema) and rule.table.fullmatch(table):
                return rule.text
        return None

    def idle(self, tables: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        """Rules that match none of these tables: most often a slip of the pen."""
        names = list(tables)
        return tuple(
            rule.text for rule in self._rules
            if not any(rule.schema.fullmatch(schema) and rule.table.fullmatch(table) for schema, table in names)
        )


def quote_rule(schema: str, table: str) -> str:
    """The rule that means this table and no other."""
    return f"{_quoted(schema)}.{_quoted(table)}"


def _quoted(name: str) -> str:
    if _BARE.fullmatch(name) and "*" not in name:
        return name
    return '"' + name.replace('"', '""') + '"'


def _parse(text: str) -> _Rule:
    start = len(text) - len(text.lstrip())
    takes = not text.startswith("!", start)
    schema, at = _part(text, start if takes else start + 1, "schema")
    if not text.startswith(".", at):
        raise _trouble(text, at, "a '.' between schema and table is missing")
    table, at = _part(text, at + 1, "table")
    if text[at:].strip():
        raise _trouble(text, at, "the rule should end here; quote names that hold dots, spaces, quotes or '!'")
    return _Rule(text, takes, schema, table)


def _part(text: str, at: int, what: str) -> tuple[re.Pattern[str], int]:
    """One side of the dot, from `at` on: its pattern, and where it ends."""
    if text.startswith('"', at):
        return _quoted_part(text, at, what)
    found = _BARE.match(text, at)
    if found is None:
        raise _trouble(text, at, f"a {what} name or '*' is missing")
    _check_length(text, at, found[0].replace("*", ""), what)
    return re.compile(_glob(found[0]), re.DOTALL), found.end()


def _glob(text: str) -> str:
    """What stands between two stars is taken where it first occurs, for good: many stars cost no more than one."""
    first, *rest = map(re.escape, text.split("*"))
    return first + "".join(f"(?>.*?{part})" for part in rest[:-1]) + "".join(f".*{part}" for part in rest[-1:])


def _quoted_part(text: str, at: int, what: str) -> tuple[re.Pattern[str], int]:
    found = re.compile(r'"((?:[^"]|"")*)"', re.DOTALL).match(text, at)
    if found is None:
        raise _trouble(text, at, "this quote is not closed")
    name = found[1].replace('""', '"')
    if not name:
        raise _trouble(text, at, f"the {what} name is empty")
    if "\0" in name:
        raise _trouble(text, at, "a name holds no zero byte")
    _check_length(text, at, name, what)
    return re.compile(re.escape(name), re.DOTALL), found.end()


def _check_length(text: str, at: int, name: str, what: str) -> None:
    if len(name.encode(errors="surrogatepass")) > _NAME_BYTES_MAX:
        raise _trouble(text, at, f"the {what} name is longer than {_NAME_BYTES_MAX} bytes and can match nothing")


def _trouble(text: str, at: int, why: str) -> InvalidTableRule:
    shown = text if len(text) <= 200 else text[:200] + "…"
    return InvalidTableRule(f"table rule {shown!r}, character {at + 1}: {why}", at=at, why=why)
