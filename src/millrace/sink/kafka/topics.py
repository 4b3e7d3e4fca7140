"""Topic of a table: by a template, with names Kafka does not allow encoded so that no two tables meet by accident [K2].

    {source}.{schema}.{table}          shop.public.orders
    a name's letter, digit or _        stays                                    "Ünit 1".a.b -> shop.-C3-9Cnit-201.a-2Eb
    every other byte of it             -XX, its two hex digits; so also . and -
    __ in front of the whole name      -5F_…: internal topics are never met
    above 249 characters               cut, then -h and 128 bits of BLAKE2b of the whole name

In: a template, names. Out: a topic name. A template is refused at once, with the place, if it cannot keep tables apart.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from millrace.errors import InvalidTopicName
from millrace.limits import TOPIC_NAME_CHARS_MAX

DEFAULT: Final = "{source}.{schema}.{table}"
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_LITERAL = re.compile(r"[A-Za-z0-9._-]*")
_KEPT = re.compile(rb"[A-Za-z0-9_]")
_NAMES = ("source", "schema", "table")
_HASH_BYTES = 16


class TopicTemplate(NamedTuple):
    text: str

    def topic(self, source: str, schema: str, table: str) -> str:
        names = {"source": source, "schema": encode_name(schema), "table": encode_name(table)}
        return _fitted(_PLACEHOLDER.sub(lambda found: names[found[1]], self.text))


def parse_template(text: str) -> TopicTemplate:
    """InvalidTopicName shows the place and the remedy."""
    at = 0
    before: re.Match[str] | None = None
    for found in _PLACEHOLDER.finditer(text):
        literal = text[at:found.start()]
        _refuse_unless_allowed(text, literal, at)
        if found[1] not in _NAMES:
            raise _refusal(text, found.start(), f"{found[0]} is no placeholder; there are {{source}}, {{schema}} and "
                                                f"{{table}}")
        if before is not None and "." not in literal:
            raise _refusal(text, found.start(), f"{before[0]} and {found[0]} need a dot between them, else two tables "
                                                "could share a topic")
        at, before = found.end(), found
    _refuse_unless_allowed(text, text[at:], at)
    if not text:
        raise _refusal(text, 0, f"empty; the default is {DEFAULT}")
    if len(text) > TOPIC_NAME_CHARS_MAX:
        raise _refusal(text, TOPIC_NAME_CHARS_MAX, f"longer than the {TOPIC_NAME_CHARS_MAX} characters of a name")
    if text in (".", "..") or text.startswith("__"):
        raise _refusal(text, 0, "names of topics do not begin with __ and are not . or ..")
    return TopicTemplate(text)


def _refuse_unless_allowed(text: str, literal: str, at: int) -> None:
    good = _LITERAL.match(literal)
    end = good.end() if good is not None else 0
    if end < len(literal):
        raise _refusal(text, at + end, f"{literal[end]!r} is not allowed in topic names; letters, digits, . _ - are")


def _refusal(text: str, at: int, why: str) -> InvalidTopicName:
    return InvalidTopicName(f"topic template {text!r}, character {at + 1}: {why}", at=at, why=why)


def encode_name(name: str) -> str:
    """Different names give different ones, none with a dot."""
    if name.isascii() and name.replace("_", "").isalnum():
        return name
    return "".join(chr(byte) if _KEPT.match(bytes([byte])) else f"-{byte:02X}" for byte in name.encode())


def _fitted(name: str) -> str:
    if name.startswith("__"):
        name = "-5F" + name[1:]        # nothing else begins so: _ stays in names, sources are lower case
    if len(name) <= TOPIC_NAME_CHARS_MAX:
        return name
    digest = blake2b(name.encode(), digest_size=_HASH_BYTES).hexdigest()
    return f"{name[:TOPIC_NAME_CHARS_MAX - 2 - len(digest)]}-h{digest}"
