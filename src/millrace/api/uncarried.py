"""Tables of a changefeed that its source carried and does not carry now: what changes in them nobody delivers [C9].

In: what the source's reader knows. Out: warnings, and the reason where nothing worse is said. The maintainer cannot
tell: to it such a table is one in which nothing happens, and its checkpoint goes on.
"""

from __future__ import annotations

from typing import Any

from millrace.changefeed.coordinator import Reign
from millrace.core.feeds.choice import Rules
from millrace.model.changefeeds import ChangefeedSpec
from millrace.ops.secrets import mask


def tell_uncarried(reign: Reign, spec: ChangefeedSpec, body: dict[str, Any]) -> list[dict[str, str]]:
    """The warnings; `why` names the tables where it is free."""
    host, rules = reign.hosts.get(spec.source), Rules(spec)
    tables = host.reader.state.tables.values() if host is not None and host.reader is not None else ()
    found = {f"{table.schema}.{table.name}": table.reason for table in tables
             if table.state == "refused" and rules.takes(table.schema, table.name)}
    if found and not body["why"]:
        names = ", ".join(sorted(found))
        body["why"] = f"source {spec.source} does not carry {names} now; see: changefeed get {spec.id}"
    said = (f"source {spec.source} does not carry it now, and what changes in it is not delivered; once it does again, "
            "a copy of the table is, but not what was deleted meanwhile")
    return [{"about": f"table {name}", "text": mask(f"{said}: {reason}")} for name, reason in sorted(found.items())]
