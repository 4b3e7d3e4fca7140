"""Tables by their names, where machines say oids: those of the source's reader, or of the log while there is none."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from millrace import limits
from millrace.api.changefeed_checks import read_tables
from millrace.changefeed.capture import Capture
from millrace.changefeed.coordinator import Reign
from millrace.core.feeds.releasing import ANY_TABLE
from millrace.errors import MillraceError
from millrace.model.tables import Oid

# As blockers write them: table 7, tables 7, 8 have not …, partition 7/0, position of 7/0.
_IN_TEXT = re.compile(r"\b(?P<what>tables?|partition|position of) (?P<oids>\d+(?:, \d+)*)(?=$|[\s/:;,])")
_TEXTS = ("what", "reason")
Items = Iterable[dict[str, Any]]


async def name_tables(capture: Capture, reign: Reign, source: str, items: Items) -> None:
    """Adds `table` to whatever has an `oid`: null where nobody knows it. In what blockers say names stand for oids; the
    commands of next steps name the table."""
    items = list(items)
    wanted, names = _wanted(items), _of_reader(source, reign)
    if not wanted <= names.keys():
        with contextlib.suppress(MillraceError, TimeoutError):
            async with asyncio.timeout(limits.RELEASED_ANSWER_S):
                found = await read_tables(capture.client, source)
            names = {oid: f"{table.schema}.{table.name}" for oid, table in found.schemas.items()} | names
    for item in items:
        if "oid" in item:
            item["table"] = names.get(item["oid"])
            _name_next_step(item)
        item.update((field, _named(item[field], names)) for field in _TEXTS if field in item)


def _name_next_step(item: dict[str, Any]) -> None:
    """A name that a shell would take apart stays for people to quote."""
    table, need = item["table"], item.get("needs_copy")
    if need is not None and table is not None and shlex.quote(table) == table:
        item["needs_copy"] = {**need, "next_step": need["next_step"].replace(ANY_TABLE, table)}


def _wanted(items: Items) -> set[Oid]:
    found = {item["oid"] for item in items if item.get("oid") is not None}
    texts = (match["oids"] for item in items for field in _TEXTS for match in _IN_TEXT.finditer(item.get(field) or ""))
    return found | {int(oid) for text in texts for oid in text.split(", ")}


def _of_reader(source: str, reign: Reign) -> dict[Oid, str]:
    host = reign.hosts.get(source)
    tables = host.reader.state.tables if host is not None and host.reader is not None else {}
    return {oid: f"{table.schema}.{table.name}" for oid, table in tables.items()}


def _named(text: str, names: Mapping[Oid, str]) -> str:
    def name(found: re.Match[str]) -> str:
        told = (names.get(int(oid), oid) for oid in found["oids"].split(", "))
        return f"{found['what']} {', '.join(told)}"

    return _IN_TEXT.sub(name, text)
