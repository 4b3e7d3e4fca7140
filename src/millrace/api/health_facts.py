"""Facts for health: what the coordinator's records, readers and maintainers say, as values of `core.health` [A9].

In: the coordinator's own state and what captures answered. Out: facts. Nothing is judged here.
"""

from __future__ import annotations

from typing import Any

from millrace.api.maintainers import Captures, Heard
from millrace.api.uncarried import not_carried
from millrace.changefeed.coordinator import Reign
from millrace.changefeed.reader_host import ReaderHost
from millrace.core.feeds.blockers import CHECKPOINT
from millrace.core.feeds.feeds import FeedEntry
from millrace.core.health.feeds import FeedFacts, Word
from millrace.core.health.sources import SourceFacts
from millrace.core.sources.registry import SourceEntry
from millrace.model.tables import Oid
from millrace.ops.secrets import mask
from millrace.source.reading.status import SlotStatus


def state_of(entry: SourceEntry, reign: Reign) -> tuple[str, str, float | None]:
    """(state, why, since). A reader's own word where one runs; else what its host waits for."""
    host, remover = reign.hosts.get(entry.spec.name), reign.removers.get(entry.spec.name)
    if entry.removing:
        return "removing", remover.why if remover is not None else "", remover.since if remover is not None else None
    if host is None:
        return "starting", "", None
    if host.reader is None:
        return ("starting" if host.state in ("placing", "running") else host.state), host.why, host.since
    status = host.reader.status
    still = host.why if status.state == "starting" else ""      # until it streams, the last failure is still news
    return status.state, mask(status.why or still), status.since or host.since


def source_facts(entry: SourceEntry, reign: Reign) -> SourceFacts:
    host = reign.hosts.get(entry.spec.name)
    status = host.reader.status if host is not None and host.reader is not None else None
    slot = status.slot if status is not None else SlotStatus()
    state, why, since = state_of(entry, reign)
    return SourceFacts(
        name=entry.spec.name, state=state, why=why, age_s=None if since is None else max(0.0, reign.now() - since),
        error=_error(host), refused=mask(status.refused) if status is not None else "",
        next_step=mask(status.next_step) if status is not None else "",
        lag_s=status.lag_s if status is not None else None, slot_state=slot.state, slot_left=_left(slot),
        slot_full_in_s=slot.full_in_s, slot_warning=slot.warning, needs_copy=_needs_copy(host))


def _error(host: ReaderHost | None) -> str:
    """The code of the failure that stands; a reader that has begun anew after one still stands under it."""
    if host is None:
        return ""
    if host.reader is None:
        return host.code
    status = host.reader.status
    return status.code or (host.code if status.state == "starting" else "")


def _left(slot: SlotStatus) -> float | None:
    if slot.retained_bytes is None or not slot.budget_bytes:
        return None
    return max(0.0, 1.0 - slot.retained_bytes / slot.budget_bytes)


def _needs_copy(host: ReaderHost | None) -> tuple[str, ...]:
    if host is None or host.reader is None:
        return ()
    return tuple(sorted(f"{table.schema}.{table.name}" for table in host.reader.state.tables.values()
                        if table.state == "needs_copy"))


def feed_facts(entry: FeedEntry, captures: Captures, reign: Reign, quarantined: int | None) -> FeedFacts:
    spec, error = entry.spec, entry.error
    heard = captures.words.get(spec.id)
    source = reign.state.sources.get(spec.source)
    spark = captures.spark if entry.runs else None
    return FeedFacts(
        id=spec.id, state=entry.state, runs=entry.runs, removing=entry.removing,
        error=mask(f"{error.code}: {error.message}") if error is not None else "",
        word=_word(heard, _names(spec.source, reign)), unheard=_unheard(entry, heard),
        source=source_facts(source, reign) if source is not None else None,
        spark=spark["reason"] if spark is not None else "", spark_age_s=spark["age_s"] if spark is not None else None,
        round_age_s=captures.rounds.get(spec.id, 0.0), quarantined=quarantined,
        not_carried=tuple(sorted(not_carried(reign, spec))))


def _unheard(entry: FeedEntry, heard: Heard | None) -> str:
    if heard is not None:
        return heard.why
    return "it has no maintainer yet" if entry.place is None else ""


def _word(heard: Heard | None, names: dict[Oid, str]) -> Word | None:
    if heard is None or heard.said is None:
        return None
    said, blocker = heard.said, _cause(heard.said)
    errors = said["errors"]
    return Word(
        state=said["state"], error=f"{errors[-1]['code']}: {errors[-1]['message']}" if errors else "",
        lag_s=said["lag_s"], lag_bytes=None if said["lag_bytes"] is None else int(said["lag_bytes"]),
        copying=said["copying"], isolated=_named(said["isolated"], names),
        needs_copy=_named(said["needs_copy"], names),
        blocker=f"{blocker['what']}: {blocker['reason']}" if blocker is not None else "",
        blocker_age_s=blocker["age_s"] if blocker is not None else 0.0)


def _cause(said: dict[str, Any]) -> dict[str, Any] | None:
    """The first thing that waits, unless it has a finding of its own: what is behind, a table that is out, a copy."""
    oldest: dict[str, Any] | None = said["oldest_blocker"]
    if oldest is None or said["copying"] or oldest["what"] == CHECKPOINT or oldest["what"].startswith("table "):
        return None
    return oldest


def _names(source: str, reign: Reign) -> dict[Oid, str]:
    host = reign.hosts.get(source)
    tables = host.reader.state.tables if host is not None and host.reader is not None else {}
    return {oid: f"{table.schema}.{table.name}" for oid, table in tables.items()}


def _named(oids: list[Oid], names: dict[Oid, str]) -> tuple[str, ...]:
    return tuple(sorted(names.get(oid, str(oid)) for oid in oids))
