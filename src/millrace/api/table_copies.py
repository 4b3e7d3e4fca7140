"""Copies under way of the tables of a changefeed: how far each is, and what it is for [S4, S12].

In: what the source's reader knows: the maintainer learns of a copy by its chunks, one by one. Out: `copy` in what the
API says of a table, and its state. Promise: a copy is shown from its plan until all of it is in the log, whoever asked
for it: a user, a table that joined, or a break of the schema.
"""

from __future__ import annotations

from typing import Any

from millrace.changefeed.coordinator import Reign
from millrace.core.sources.copies import Copy
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.tables import Oid
from millrace.ops.secrets import mask
from millrace.source.reading.status import CopyStatus


def add_copies(reign: Reign, spec: ChangefeedSpec, items: list[dict[str, Any]]) -> None:
    """Adds `copy` to every table: null where none is under way. A table that works is `copying` meanwhile."""
    found = _under_way(reign, spec)
    for item in items:
        item["copy"] = found.get(item["oid"])
        if item["copy"] is not None:
            item["copying"] = True
            item["state"] = "copying" if item["state"] == "working" else item["state"]


def _under_way(reign: Reign, spec: ChangefeedSpec) -> dict[Oid, dict[str, Any]]:
    """The last one of each table. Single keys that are read again are none: the table is not copied."""
    host = reign.hosts.get(spec.source)
    if host is None or host.reader is None:
        return {}
    planned = host.reader.state.copies.by_id
    return {status.oid: _view(status, planned[status.copy]) for status in host.reader.status.copies
            if status.state != "done" and status.copy in planned and _is_for(planned[status.copy], spec.id)}


def _is_for(copy: Copy, feed: str) -> bool:
    return copy.is_whole and (not copy.feeds or feed in copy.feeds)


def _view(status: CopyStatus, copy: Copy) -> dict[str, Any]:
    return {"copy": status.copy, "state": status.state, "percent": round(status.share * 100, 1),
            "rows": str(status.rows), "eta_s": status.eta_s, "why": mask(status.why), "because": mask(copy.why)}
