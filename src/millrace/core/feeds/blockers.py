"""Whatever waits, with owner, reason and age [C9]. Derived from the machines' state; shown by API, CLI and metrics.

Promises: an age counts from when there was something to wait for; what is behind because something else waits is told
after that, however old it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from millrace.core.feeds.coordinator import Coordinator
    from millrace.core.feeds.maintainer import Maintainer


CHECKPOINT, SCHEMA_CHANGE, SPAN = "checkpoint", "schema change", "span"


class Blocker(NamedTuple):
    """`owner`: who would have to act, as `capture 2`, `coordinator`, `maintainer of orders`."""

    what: str
    owner: str
    reason: str
    since: float


def turn(what: str, age_s: float) -> tuple[int, float]:
    """Sorts blockers: those that can be a cause, then spans on their way, which wait for captures, Spark and the sink,
    then schema changes, which wait for rows, then the checkpoint, which waits for all of them; the oldest first."""
    follows = 3 if what == CHECKPOINT else 2 if what.startswith(SCHEMA_CHANGE) else 1 if what.startswith(SPAN) else 0
    return follows, -age_s


def feed_blockers(maintainer: Maintainer) -> list[Blocker]:
    return [*_beginning(maintainer), *_spans(maintainer), *_needs(maintainer), *_changes(maintainer),
            *_positions(maintainer), *_searches(maintainer), *_pauses(maintainer)]


def _beginning(m: Maintainer) -> list[Blocker]:
    me = f"maintainer of {m.feed}"
    if m.ddl.position is None:
        since = m.ddl.since or m.begun
        return [Blocker(f"changefeed {m.feed}", me, "the ddl dispatcher takes over its position", since)]
    if m.ready:
        what = "what was changed is being settled: tables join, leave, are moved by other settings"
        return [Blocker(f"changefeed {m.feed}", me, what, m.begun)] if m.settling.is_due else []
    return [
        Blocker(f"changefeed {m.feed}", f"capture {capture}", "has not said which dispatchers it has", m.begun)
        for capture in sorted(m.state.by_capture) if not m.answered(capture)
    ]


def _spans(m: Maintainer) -> list[Blocker]:
    placing, out = m.placing, []
    for span_id, operator in placing.operators.items():
        place = operator.destination or m.state.spans[span_id].place
        owner = f"capture {place.capture}" if place is not None else f"maintainer of {m.feed}"
        reason = f"{operator.kind} ({operator.reason}): waits for {placing.waits.get(span_id, 'its turn')}"
        out.append(Blocker(f"{SPAN} {span_id}", owner, reason, operator.begun))
    for span_id, (since, reason) in placing.absent.items():
        why = f"absent: {reason}; no capture is schedulable"
        out.append(Blocker(f"{SPAN} {span_id}", f"maintainer of {m.feed}", why, since))
    return out


def _needs(m: Maintainer) -> list[Blocker]:
    return [
        Blocker(f"table {table.oid}", "whoever runs the source" if m.releasing.waits_for_people(table) else
                f"maintainer of {m.feed}", f"needs a copy: {need.why}; {m.releasing.waits_for(table)}", m.begun)
        for table, need in m.state.needs.items()
    ]


def _changes(m: Maintainer) -> list[Blocker]:
    change, out = m.ddl.waiting(), []
    if change is not None:
        missing = m.ddl.missing(change)
        names = ", ".join(str(table.oid) for table in missing)
        reason = f"tables {names} have not reached the marker" if missing else "it is being written"
        what = f"{SCHEMA_CHANGE} {change.number} ({change.kind})"
        out.append(Blocker(what, f"maintainer of {m.feed}", reason, m.ddl.since))
    position = m.ddl.position
    for table, own in position.isolated if position is not None else ():
        error = m.state.troubles.get(table)
        reason = f"isolated at change {own}: {error.code if error else 'asked for'}; it catches up alone"
        since = m.ddl.isolated_since.get(table, m.begun)
        out.append(Blocker(f"table {table.oid}", f"maintainer of {m.feed}", reason, since))
    return out


def _positions(m: Maintainer) -> list[Blocker]:
    if m.ddl.position is None:
        return []
    lsn, holder = m.done_upto()
    owner = f"maintainer of {m.feed}"
    if lsn is None:
        what = f"position of {holder.table.oid}/{holder.partition}" if holder is not None else "marks of the source"
        return [Blocker(CHECKPOINT, owner, f"{what} not read yet", m.begun)]
    if holder is None:
        return []
    why = "is not copied: rows of its table's first copy are missing" if m.progress.owes(holder) else "is behind"
    reason = f"partition {holder.table.oid}/{holder.partition} {why}"
    since = m.waiting.since(max(lsn, m.state.checkpoint))    # what it stood at while it was idle is no wait
    return [Blocker(CHECKPOINT, owner, reason, max(m.done_at, since or 0.0))]


def _searches(m: Maintainer) -> list[Blocker]:
    out = []
    for error in m.health.searches:
        assert error.span is not None
        assert error.table is not None
        span = m.state.spans.get(error.span)
        place = span.place if span is not None else None
        owner = f"capture {place.capture}" if place is not None else f"maintainer of {m.feed}"
        since = m.sight.now - (error.last_ms - error.first_ms) / 1000
        out.append(Blocker(f"table {error.table.oid}", owner, error.message, since))
    return out


def _pauses(m: Maintainer) -> list[Blocker]:
    return [
        Blocker(f"dispatchers of capture {capture}", "the sink", f"{pause.error.message}; " + (
            f"next probe in {pause.probe_s:.0f} s" if pause.probe_s else "a probe is under way"), pause.since)
        for capture, pause in m.health.pauses.items()
    ]


def coordinator_blockers(c: Coordinator) -> list[Blocker]:
    out = [
        Blocker(f"changefeed {feed}", "coordinator", f"no maintainer: {why}; no capture is schedulable", since)
        for feed, (since, why) in c.absent.items()
    ]
    for feed, operator in c.operators.items():
        place = operator.destination or c.state.feeds[feed].place
        owner = f"capture {place.capture}" if place is not None else "coordinator"       # its record is being written
        reason = f"{operator.kind} ({operator.reason}): waits for {c.waits[feed]}"
        out.append(Blocker(f"changefeed {feed}", owner, reason, operator.begun))
    now, hearing = c.sight.now, c.sight.hearing
    out += [
        Blocker(f"changefeed {feed}", "coordinator", "is being removed", c.ends_since.get(feed, now))
        for feed, entry in c.state.feeds.items() if entry.removing
    ]
    for capture in sorted(c.sight.living):
        if not hearing.fresh(capture, now):
            since = now - hearing.silent_s(capture, now)
            out.append(Blocker(f"capture {capture}", f"capture {capture}", "does not answer", since))
    return out
