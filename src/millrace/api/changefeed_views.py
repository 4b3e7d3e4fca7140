"""A changefeed as people see it: what the coordinator has recorded, joined with its maintainer's word [C8, C9].

In: an entry, what was heard of its maintainer, its health. Out: JSON values. State, `why` and lag are those of its
health (core.health.feeds); of a changefeed whose maintainer says nothing the figures are null.
"""

from __future__ import annotations

from typing import Any

from millrace.api.health_views import finding_view
from millrace.api.maintainers import Heard, blocker_view, error_view, operator_view
from millrace.core.feeds.blockers import turn
from millrace.core.feeds.coordinator import Coordinator
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.health.feeds import FeedHealth
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.ops.secrets import mask

FIGURES = ("checkpoint", "resolved", "checkpoint_age_s", "tables_count", "isolated_count",
           "needs_copy_count",
           "dispatchers_count", "working_count", "operators_count", "blockers_count")


def describe(entry: FeedEntry, heard: Heard | None, machine: Coordinator, health: FeedHealth) -> dict[str, Any]:
    spec, place = entry.spec, entry.place if entry.runs else None
    said = heard.said if heard is not None else None
    errors = said["errors"] if said is not None else []
    blockers = coordinator_blockers(spec.id, machine)
    if said is not None:
        blockers += [one for one in (said["oldest_blocker"], said["spark"]) if one is not None]
    return {
        **_spec(spec),
        "created_ms": str(entry.created_ms),
        "state": health.state,
        "why": health.why,
        "health": [finding_view(one) for one in health.findings],
        "lag_s": None if health.lag_s is None else round(health.lag_s, 3),
        "lag_bytes": None if health.lag_bytes is None else str(health.lag_bytes),
        "error": error_view(entry.error) if entry.error is not None else None,
        "errors": errors,
        "maintainer": place.capture if place is not None else None,
        "maintainer_epoch": place.epoch if place is not None else None,
        **{name: said[name] if said is not None else None for name in FIGURES},
        "oldest_blocker": min(blockers, key=in_turn, default=None),
    }


def named(body: dict[str, Any]) -> list[dict[str, Any]]:
    """What tells of tables in it."""
    return [*body["errors"], *(one for one in (body["error"], body["oldest_blocker"]) if one is not None)]


def in_turn(blocker: dict[str, Any]) -> tuple[int, float]:
    """As they are told: causes before what follows from them, the oldest first."""
    return turn(blocker["what"], float(blocker["age_s"]))


def _spec(spec: ChangefeedSpec) -> dict[str, Any]:
    return {"id": spec.id, "source": spec.source, "sink": mask(spec.sink), "tables": list(spec.tables),
            "settings": [_settings(one) for one in spec.settings], "on_error": spec.on_error,
            "on_schema_break": spec.on_schema_break}


def _settings(one: TableSettings) -> dict[str, Any]:
    return {"tables": one.tables, "filter": one.filter, "projection": list(one.projection), "topic": one.topic,
            "partition_by": one.partition_by}


def maintainer_operators(feed: str, machine: Coordinator) -> list[dict[str, Any]]:
    operator = machine.operators.get(feed)
    if operator is None:
        return []
    return [operator_view("maintainer", operator, machine.waits.get(feed, ""), machine.sight.now,
                          place=machine.state.entry(feed).place)]


def coordinator_blockers(feed: str, machine: Coordinator) -> list[dict[str, Any]]:
    """Those of this changefeed. A capture that does not answer may hold it up, too, unless it is nowhere at all."""
    entry = machine.state.entry(feed)
    is_somewhere = entry.runs or entry.removing or entry.place is not None
    return [blocker_view(blocker, machine.sight.now) for blocker in machine.blockers()
            if blocker.what == f"changefeed {feed}" or (is_somewhere and blocker.what.startswith("capture "))]


def why_not_removed(feed: str, machine: Coordinator) -> str:
    found = [f"{one['what']}: {one['reason']}" for one in coordinator_blockers(feed, machine)]
    return "; ".join(found)
