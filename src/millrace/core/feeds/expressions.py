"""Filters and projections as far as they can be judged without Spark: their words, what they call, what they need.

    text ──▶ words ──▶ refused: queries, windows, functions that are not allowed, what the text would have Spark look up
                  └──▶ Expression ── bound to a table's columns ──▶ the columns that it needs

In: Spark SQL as the user wrote it. Out: an Expression or a Projection. Promise: what passes calls nothing but functions
of the list (core.feeds.functions), and stays one expression inside parentheses. Whether it means something is Spark's
to say (pipeline.shape.analysis). Errors: InvalidExpression, with the field and the place shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, NoReturn, Protocol

from millrace import limits
from millrace.core.feeds.functions import BARE, why_not
from millrace.core.marked import marked
from millrace.errors import InvalidExpression
from millrace.model.tables import TableSchema

# A name in backticks, a string, a word (a name, a keyword, a number), or a sign. Strings that begin with r know no
# escapes; in all others a backslash takes the next sign with it.
_WORDS = re.compile(
    r"""(?P<space>\s+)|(?P<comment>--|/\*)|(?P<name>`(?:[^`]|``)*`)|(?P<raw>[rR](?:'[^']*'|"[^"]*"))"""
    r"""|(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<word>\w+)|(?P<sign>.)""", re.DOTALL)
_SIGNS: Final = "()[]+-*/%<>=!~^&|,.:"
_OPEN, _CLOSE = {"(": ")", "[": "]"}, {")": "(", "]": "["}

# Words before a parenthesis that call nothing.
_GRAMMAR: Final = frozenset((
    "and", "as", "between", "both", "by", "case", "collate", "div", "else", "end", "escape", "for", "from", "ilike",
    "in", "interval", "is", "leading", "like", "not", "on", "or", "regexp", "rlike", "then", "to", "trailing", "using",
    "when", "where"))
_QUERY: Final = frozenset({"exists", "lateral", "map", "reduce", "select", "table", "transform", "values", "with"})
_CLOCKS: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)


class _Refuse(Protocol):
    def __call__(self, at: int, why: str, length: int = 1) -> NoReturn: ...


class Word(NamedTuple):
    kind: str                  # name (in backticks), word, string, raw, sign
    text: str                  # of a name: without its backticks
    at: int

    @property
    def lower(self) -> str:
        return self.text.lower()

    @property
    def length(self) -> int:
        """As it stands in the text."""
        return len(self.text) + (2 + self.text.count("`") if self.kind == "name" else 0)

    @property
    def is_name(self) -> bool:
        return self.kind in ("name", "word")

    @property
    def names(self) -> str | None:
        """What it may name: a setting of Spark makes names of texts in double quotes."""
        if self.is_name:
            return self.text
        return self.text[1:-1] if self.kind == "string" and self.text.startswith('"') else None


class Expression(NamedTuple):
    """`where`: the field of the spec it stands in. `at`: where `sql` begins in `text`, what the user wrote."""

    where: str
    text: str
    sql: str
    at: int
    words: tuple[Word, ...]

    @property
    def plain(self) -> str | None:
        """The name, if it is nothing else."""
        first = self.words[0]
        if len(self.words) > 1 or not first.is_name:
            return None
        constant = first.kind == "word" and (first.lower in ("null", "true", "false") or first.text[0].isdigit())
        return None if constant else first.text

    def refuse(self, at: int, why: str, *, length: int = 1) -> NoReturn:
        """`at`: in `text`."""
        raise InvalidExpression(marked(self.where, self.text, at, why, length=length))


class Projection(NamedTuple):
    """One entry: an expression and the name of its column. `every`: a star, all columns as they are."""

    expression: Expression
    name: str
    every: bool = False


def read_filter(where: str, text: str) -> Expression:
    words = _read(where, text)
    return Expression(where, text, text, 0, words)


def read_projection(where: str, text: str) -> Projection:
    """`column`, `expression AS name`, or `*`."""
    words = _read(where, text)
    whole = Expression(where, text, text, 0, words)
    if [word.text for word in words] == ["*"]:
        return Projection(whole, "", every=True)
    if whole.plain is not None:
        return Projection(whole, whole.plain)
    if len(words) < 3 or words[-2].lower != "as" or words[-2].kind != "word" or not words[-1].is_name:
        whole.refuse(len(text.rstrip()), "give it a name: expression AS name")
    sql = text[:words[-2].at]
    return Projection(Expression(where, text, sql, 0, words[:-2]), words[-1].text)


def needs(expression: Expression, table: TableSchema) -> tuple[int, ...]:
    """Indexes of the columns that it may look at: every one that it names, whatever the name stands for there. A name
    means the column that is spelt so, else those that differ in case only, as in Spark."""
    exact = {column.name: i for i, column in enumerate(table.columns)}
    found: set[int] = set()
    for word in expression.words:
        name = word.names
        if name is None:
            continue
        meant = [exact[name]] if name in exact else [
            i for i, column in enumerate(table.columns) if column.name.lower() == name.lower()]
        if not meant and word.is_name and word.lower in BARE:
            expression.refuse(word.at, why_not(word.lower) or f"{word.text} is no column", length=word.length)
        found.update(meant)
    return tuple(sorted(found))


def column_of(expression: Expression, table: TableSchema) -> int | None:
    """The column it is, if it is one and nothing else. More than one is meant, or none: refused."""
    if expression.plain is None:
        return None
    meant = needs(expression, table)
    if len(meant) != 1:
        names = ", ".join(table.columns[i].name for i in meant or range(len(table.columns)))
        expression.refuse(expression.words[0].at, f"{expression.plain!r} is no column of {table.full_name}; it has "
                          f"{names}" if not meant else f"{expression.plain!r} may be any of {names}: spell it so",
                          length=expression.words[0].length)
    return meant[0]


# -- words ---------------------------------------------------------------------------------------------------------
def _read(where: str, text: str) -> tuple[Word, ...]:
    def refuse(at: int, why: str, length: int = 1) -> NoReturn:
        raise InvalidExpression(marked(where, text, at, why, length=length))

    if len(text) > limits.EXPRESSION_CHARS_MAX:
        refuse(limits.EXPRESSION_CHARS_MAX, f"longer than {limits.EXPRESSION_CHARS_MAX} characters")
    # Spark puts settings and the server's environment in here before it reads anything, inside strings as well.
    if (at := text.find("${")) >= 0:
        refuse(at, "'${' is not allowed: nothing is put in from elsewhere", 2)
    words = tuple(_words(text, refuse))
    if not words:
        refuse(0, "empty")
    _check_pairs(words, refuse)
    for before, word, after in zip((None, *words[:-1]), words, (*words[1:], None), strict=True):
        why = _trouble(before, word, after)
        if why:
            refuse(word.at, why, word.length)
    return words


def _words(text: str, refuse: _Refuse) -> Iterator[Word]:
    for found in _WORDS.finditer(text):
        kind, value, at = str(found.lastgroup), found[0], found.start()
        if kind == "comment":
            refuse(at, "comments are not allowed", 2)
        if value == "\0" or (kind == "sign" and value in "'\"`"):
            refuse(at, "this quote is not closed" if value != "\0" else "no zero bytes")
        if kind == "sign" and value not in _SIGNS:
            refuse(at, f"{value!r} is not allowed here")
        if kind == "name":
            value = value[1:-1].replace("``", "`")
        if kind != "space":
            yield Word(kind, value, at)


def _check_pairs(words: Sequence[Word], refuse: _Refuse) -> None:
    """Pairs close inside the text, so that it stays one expression whatever is put around it."""
    open_: list[Word] = []
    cases = 0
    for word in words:
        if word.kind == "word":
            cases += (word.lower == "case") - (word.lower == "end" and cases > 0)
        if word.kind == "sign" and word.text in _OPEN:
            open_.append(word)
        elif word.kind == "sign" and word.text in _CLOSE and (
                not open_ or open_.pop().text != _CLOSE[word.text]):
            refuse(word.at, f"{word.text!r} closes nothing")
        if len(open_) + cases > limits.EXPRESSION_DEPTH_MAX:
            refuse(word.at, f"nested deeper than {limits.EXPRESSION_DEPTH_MAX}")
    if open_:
        refuse(open_[-1].at, f"{open_[-1].text!r} is not closed")


def _trouble(before: Word | None, word: Word, after: Word | None) -> str | None:
    """Why this word may not stand there."""
    called = after is not None and after.kind == "sign" and after.text == "("
    dotted = before is not None and before.kind == "sign" and before.text == "."
    if word.kind == "word":
        if word.lower in _QUERY or (word.lower == "from" and (before is None or before.text == "(")):
            return f"queries are not allowed; a column of that name is written `{word.text}`"
        if word.lower == "over":
            return "windows are not allowed; a column of that name is written `over`"
        if called and word.lower in _GRAMMAR and not dotted:
            return None
        if called and word.lower in ("any", "some", "all") and before is not None and before.lower in ("like", "ilike"):
            return None
    if word.kind in ("string", "raw") and before is not None and before.lower.startswith(("date", "timestamp")) \
            and _CLOCKS.match(word.text.lstrip("rR").strip("'\"")):
        return "tells the time: the same row would not always give the same"
    if not called or word.kind == "sign":
        return None
    return "functions of your own are not allowed" if dotted or not word.is_name else why_not(word.lower)

