"""Tables that a changefeed's rules take and its source does not carry: what is in them nobody delivers [C9].

In: what the source's reader knows. Out: those tables, why, and the next step; warnings. The maintainer cannot tell: to
it a table that was carried once is one in which nothing happens, and one that never was is not there.
"""

from __future__ import annotations

from millrace.changefeed.coordinator import Reign
from millrace.core.feeds.choice import Rules
from millrace.model.changefeeds import ChangefeedSpec
from millrace.ops.secrets import mask
from millrace.source.reading.status import ReaderStatus


def not_carried(reign: Reign, spec: ChangefeedSpec) -> dict[str, str]:
    """Tables by name, and why: those that its source never carried, and those that it does not carry any more."""
    return {**{one["table"]: f"{one['why']}; next step: {one['next_step']}" for one in uncarried_of(reign, spec)},
            **_no_more(reign, spec)}


def _no_more(reign: Reign, spec: ChangefeedSpec) -> dict[str, str]:
    host, rules = reign.hosts.get(spec.source), Rules(spec)
    tables = host.reader.state.tables.values() if host is not None and host.reader is not None else ()
    return {f"{table.schema}.{table.name}": table.reason for table in tables
            if table.state == "refused" and rules.takes(table.schema, table.name)}


def uncarried(status: ReaderStatus | None, rules: Rules | None = None) -> list[dict[str, str]]:
    """Tables that the rules of the source take, and `rules`, too."""
    found = status.uncarried if status is not None else ()
    items = [{"table": f"{one.schema}.{one.name}", "why": mask(one.why), "next_step": mask(one.next_step)}
             for one in found if rules is None or rules.takes(one.schema, one.name)]
    return sorted(items, key=lambda item: item["table"])


def uncarried_of(reign: Reign, spec: ChangefeedSpec) -> list[dict[str, str]]:
    host = reign.hosts.get(spec.source)
    return uncarried(host.reader.status if host is not None and host.reader is not None else None, Rules(spec))


def uncarried_warnings(reign: Reign, spec: ChangefeedSpec) -> list[dict[str, str]]:
    once = _no_more(reign, spec)
    was = (f"source {spec.source} does not carry it now, and what changes in it is not delivered; once it does again, "
           "a copy of the table is, but not what was deleted meanwhile")
    never = f"source {spec.source} does not carry it, and nothing of it is delivered"
    return [{"about": f"table {name}", "text": mask(f"{was if name in once else never}: {reason}")}
            for name, reason in sorted(not_carried(reign, spec).items())]
