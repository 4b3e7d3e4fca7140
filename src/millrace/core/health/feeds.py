"""A changefeed's health: the state that people see, why, its lag, and findings [C8, C9, A9].

    recorded state ─┐
    maintainer ─────┼─▶ FeedFacts ─▶ judge ─▶ FeedHealth {state, why, lag, findings}
    source, Spark ──┘

In: what is recorded of it, what its maintainer says, its source's health, whether Spark answers. Out: one judgement,
used by `changefeed get`, `status`, metrics and alerts. Promises: `normal` means that changes of its source reach its
sink; a lag that cannot be known is None; causes stand before what follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace import limits
from millrace.core.health.findings import Finding
from millrace.core.health.sources import SourceFacts, counted, named, trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What its maintainer says. `state` by its dispatchers' errors, `error` the last of them. `lag_s`: age of the
    oldest change that its source has resolved and its sink has not; 0: none. `copying`: the wait is for a copy.
    `blocker`, `blocker_age_s`: the first thing that waits and is no consequence of another."""

    state: str
    error: str = ""
    lag_s: float | None = None
    lag_bytes: int | None = None
    copying: bool = False
    isolated: tuple[str, ...] = ()
    needs_copy: tuple[str, ...] = ()
    blocker: str = ""
    blocker_age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedFacts:
    """`word` None: its maintainer says nothing, and `unheard` why. `spark`: why Spark is absent; empty: it answers.
    `round_age_s`: of its oldest round under way. `quarantined` None: unknown."""

    id: str
    state: str
    runs: bool
    removing: bool = False
    error: str = ""
    word: Word | None = None
    unheard: str = ""
    source: SourceFacts | None = None
    spark: str = ""
    spark_age_s: float | None = None
    round_age_s: float = 0.0
    quarantined: int | None = None
    not_carried: tuple[str, ...] = ()
    targets_lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FeedHealth:
    """`lag_s`, `lag_bytes` None: unknown."""

    state: str
    why: str
    lag_s: float | None
    lag_bytes: int | None
    findings: tuple[Finding, ...]


def judge(f: FeedFacts) -> FeedHealth:
    found = [*_tables(f)]
    if not f.runs:
        if f.state == "failed":
            found.insert(0, Finding("changefeed_failed", f.id, f.error or "it has failed"))
        return FeedHealth(f.state, "what it left is being removed" if f.removing else f.error, None, None, tuple(found))
    moves = _moves(f)
    state = f.word.state if f.word is not None else "warning"
    if state == "normal" and (moves or any(one.code in WARNS for one in found)):
        state = "warning"
    lag_s, lag_bytes = _lag(f)
    found = [*moves, *found]
    return FeedHealth(state, found[0].reason if found else "", lag_s, lag_bytes, tuple(found))


# Of its tables: those that make the changefeed itself `warning`. Rows in quarantine are delivered nowhere, and the flow
# goes on [P9].
WARNS = frozenset(("table_isolated", "table_needs_copy", "table_target_lost"))


def _moves(f: FeedFacts) -> list[Finding]:
    """Why its rows do not move, or move late; causes first."""
    found = []
    down = trouble(f.source) if f.source is not None else None
    if down is not None:
        reason = f"source {down.name} is {f.source.state if f.source else ''}: {down.reason}"
        found.append(Finding("changefeed_without_source", f.id, reason, down.age_s))
    if f.spark:
        found.append(Finding("changefeed_without_spark", f.id, f"no Spark: {f.spark}", f.spark_age_s))
    word = f.word
    if word is None:
        return [*found, Finding("changefeed_unknown", f.id, f.unheard or "its maintainer says nothing")]
    if word.state == "failed":
        found.append(Finding("changefeed_failed", f.id, word.error or "it has failed"))
    elif word.state != "normal" and word.error and not word.isolated:
        found.append(Finding("changefeed_retrying", f.id, word.error))
    if f.round_age_s > limits.ROUND_STUCK_S and not f.spark:
        found.append(Finding("changefeed_stuck", f.id, f"a round is under way for {f.round_age_s:.0f} s: Spark's "
                             "workers do not end it", f.round_age_s))
    if word.blocker and word.blocker_age_s > limits.BLOCKED_WARN_S:
        found.append(Finding("changefeed_blocked", f.id, word.blocker, word.blocker_age_s))
    if word.lag_s is not None and word.lag_s > limits.FEED_LAG_WARN_S and not word.copying:
        found.append(Finding("changefeed_lagging", f.id, f"its oldest change waits for {word.lag_s:.0f} s", word.lag_s))
    return found


def _tables(f: FeedFacts) -> list[Finding]:
    found, word = [], f.word
    if f.targets_lost:
        found.append(Finding("table_target_lost", f.id, f"the target of {counted(f.targets_lost)} is gone"))
    if word is not None and word.needs_copy:
        need = "needs" if len(word.needs_copy) == 1 else "need"
        found.append(Finding("table_needs_copy", f.id, f"{counted(word.needs_copy)} {need} a copy"))
    if word is not None and word.isolated:
        why = f": {word.error}" if word.error else ""
        found.append(Finding("table_isolated", f.id, f"{counted(word.isolated)} isolated{why}"))
    if f.not_carried:
        of = f"source {f.source.name}" if f.source is not None else "its source"
        found.append(Finding("table_not_carried", f.id, f"{of} does not carry {named(f.not_carried)} now"))
    if f.quarantined:
        found.append(Finding("rows_in_quarantine", f.id, f"{f.quarantined} rows stand in its quarantine: the sink does "
                             "not have them"))
    return found


def _lag(f: FeedFacts) -> tuple[float | None, int | None]:
    """Unknown while nobody knows what the database has: its source does not stream, or nobody speaks for it."""
    word, source = f.word, f.source
    if word is None or source is None or not source.flows:
        return None, None
    behind = [lag for lag in (word.lag_s, source.lag_s) if lag is not None]
    return (max(behind) if word.lag_s is not None else None), word.lag_bytes
