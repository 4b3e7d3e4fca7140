"""The slot of a source and the server behind it: what they are now, and how long that will last.

In: connections. Out: facts for the reader's judgement (core/reader.judge), and a `Health` that says how much WAL the
slot holds back, how much it may, and when that is used up [S9]. Nothing here repairs: a lost slot is a state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from millrace import limits
from millrace.core.durations import YEAR_S, duration_text
from millrace.core.sources.reader import ServerFacts, SlotFacts
from millrace.errors import SlotActive, SlotLost
from millrace.model.tables import Lsn, parse_lsn
from millrace.source.database.connect import epoch_of

Connection = psycopg.AsyncConnection[Any]

RATE_WINDOW_S = 300.0                 # long enough to see through a checkpoint, short enough to see a bulk load
FREE_SLOT_S = 10.0                    # a terminated sender is gone in milliseconds; one in a long spill takes seconds
FREE_SLOT_POLL_S = 0.05


@dataclass(frozen=True)
class SlotState:
    """One row of pg_replication_slots, as far as we use it, and who streams from it."""

    name: str
    database: str
    plugin: str
    confirmed_flush: Lsn
    restart_lsn: Lsn | None        # None: the server has given up the WAL
    wal_status: str
    invalidation: str
    active_pid: int | None
    active_application: str
    safe_wal_bytes: int | None     # None: unlimited, or lost
    wal_end: Lsn
    budget_bytes: int | None       # max_slot_wal_keep_size; None: unlimited
    is_failover: bool
    is_temporary: bool

    @property
    def is_lost(self) -> bool:
        return self.wal_status == "lost" or bool(self.invalidation)

    @property
    def retained_bytes(self) -> int:
        return max(0, self.wal_end - self.restart_lsn) if self.restart_lsn is not None else 0

    @property
    def facts(self) -> SlotFacts:
        status = "lost" if self.is_lost else self.wal_status
        return SlotFacts(self.confirmed_flush, status, self.invalidation)

    def check(self) -> None:
        """Before streaming: the server would refuse for ever, so nobody should try again and again."""
        if self.is_lost:
            raise SlotLost(f"replication slot {self.name}: the server has discarded WAL it needed"
                           f" ({self.invalidation or self.wal_status}); its tables are copied again")


# Columns that later versions brought are asked for by way of JSON, which gives null where they are not.
_SLOT = """
SELECT s.slot_name, coalesce(s.database, ''), coalesce(s.plugin, ''), s.confirmed_flush_lsn::text, s.restart_lsn::text,
       coalesce(s.wal_status, ''), coalesce(j.row->>'invalidation_reason', ''),
       coalesce(j.row->>'conflicting', 'false'), s.active_pid, coalesce(a.application_name, ''), s.safe_wal_size,
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_insert_lsn() END::text,
       (SELECT setting::int8 FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'),
       coalesce((j.row->>'failover')::bool, false), s.temporary
FROM pg_catalog.pg_replication_slots s
CROSS JOIN LATERAL (SELECT pg_catalog.to_jsonb(s) AS row) j
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
WHERE s.slot_name = %s
"""


async def slot_state(connection: Connection, slot: str) -> SlotState | None:
    """None: there is no such slot."""
    cursor = await connection.execute(_SLOT, [slot])
    row = await cursor.fetchone()
    if row is None:
        return None
    (name, database, plugin, confirmed, restart, status, reason, conflicting, pid, application, safe, end, keep_mb,
     failover, temporary) = row
    return SlotState(
        name=name, database=database, plugin=plugin, confirmed_flush=parse_lsn(confirmed or "0/0"),
        restart_lsn=parse_lsn(restart) if restart else None, wal_status=status,
        invalidation=reason or ("conflict" if conflicting == "true" else ""), active_pid=pid,
        active_application=application, safe_wal_bytes=safe, wal_end=parse_lsn(end or "0/0"),
        budget_bytes=None if keep_mb is None or keep_mb < 0 else keep_mb << 20,
        is_failover=failover, is_temporary=temporary,
    )


async def free_slot(connection: Connection, slot: str, *, source: str, epoch: int, wait_s: float = FREE_SLOT_S) -> None:
    """Ends a stream of this source under a lower epoch; one that is not ours, or newer, is left alone: SlotActive."""
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        state = await slot_state(connection, slot)
        if state is None or state.active_pid is None:
            return
        theirs = epoch_of(state.active_application, source)
        if theirs is None or theirs >= epoch:
            who = state.active_application or "somebody whose name this role may not see"
            raise SlotActive(f"replication slot {slot} is in use by {who} (pid {state.active_pid})")
        # In one statement, so that a pid used again by another meanwhile is not hit.
        await connection.execute(
            "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity"
            " WHERE pid = %s AND application_name = %s", [state.active_pid, state.active_application])
        if asyncio.get_running_loop().time() > deadline:
            raise SlotActive(f"replication slot {slot}: pid {state.active_pid} does not end though it was told to")
        await asyncio.sleep(FREE_SLOT_POLL_S)


async def server_facts(replication: Connection) -> ServerFacts:
    """Asked on the connection that will stream: what it says is about the server that delivers."""
    cursor = await replication.execute("IDENTIFY_SYSTEM")
    row = await cursor.fetchone()
    assert row is not None
    system_id, timeline, wal_end = str(row[0]), int(row[1]), parse_lsn(str(row[2]))
    if timeline == 1:       # has no history
        return ServerFacts(system_id, timeline, wal_end=wal_end)
    cursor = await replication.execute(f"TIMELINE_HISTORY {timeline}".encode())
    row = await cursor.fetchone()
    assert row is not None
    return ServerFacts(system_id, timeline, parse_history(_text(row[1])), wal_end)


def parse_history(text: str) -> tuple[tuple[int, Lsn], ...]:
    """Lines `timeline <blank> LSN where it ended <blank> why`; comments and empty lines between."""
    found = []
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if len(words) >= 2:
            found.append((int(words[0]), parse_lsn(words[1])))
    return tuple(found)


def _text(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, bytes | memoryview) else str(value)


# -- how long it will last ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Health:
    """For status, metrics and warnings. `level` lost: only copies help."""

    level: Literal["ok", "warn", "urgent", "lost"]
    retained_bytes: int
    budget_bytes: int | None
    left_bytes: int | None
    wal_bytes_per_s: float
    full_in_s: float | None        # at the present rate, if nothing is acknowledged meanwhile
    text: str


class SlotGuard:
    """Fed with states of the slot, tells its health. `budget_bytes` 0: what the server allows."""

    def __init__(self, budget_bytes: int = 0) -> None:
        self._budget_bytes = budget_bytes
        self._seen: deque[tuple[float, Lsn]] = deque()

    def look(self, state: SlotState, now: float) -> Health:
        rate = self._rate(state.wal_end, now)
        budgets = [b for b in (self._budget_bytes or None, state.budget_bytes) if b is not None]
        budget = min(budgets) if budgets else None
        if state.is_lost:
            return Health("lost", 0, budget, None, rate, None,
                          f"the slot is lost ({state.invalidation or state.wal_status}); copy its tables again")
        left = None if budget is None else max(0, budget - state.retained_bytes)
        if left is not None and state.safe_wal_bytes is not None:
            left = max(0, min(left, state.safe_wal_bytes))
        full_in_s = left / rate if left is not None and rate > 0 else None
        if full_in_s is not None and full_in_s > YEAR_S:
            full_in_s = None                             # a server that writes next to nothing: it does not fill
        level = _level(left, budget, state.wal_status)
        return Health(level, state.retained_bytes, budget, left, rate, full_in_s, _said(level, left, budget, full_in_s))

    def _rate(self, wal_end: Lsn, now: float) -> float:
        if self._seen and wal_end < self._seen[-1][1]:      # another server, or one that was set back
            self._seen.clear()
        self._seen.append((now, wal_end))
        while now - self._seen[0][0] > RATE_WINDOW_S and len(self._seen) > 2:
            self._seen.popleft()
        first_now, first_end = self._seen[0]
        return (wal_end - first_end) / (now - first_now) if now > first_now else 0.0


def _level(left: int | None, budget: int | None, wal_status: str) -> Literal["ok", "warn", "urgent"]:
    if wal_status == "unreserved":         # the next checkpoint may take the WAL away
        return "urgent"
    if left is None or not budget:
        return "ok"
    if left <= budget * limits.SLOT_URGENT_LEFT:
        return "urgent"
    return "warn" if left <= budget * limits.SLOT_WARN_LEFT else "ok"


def _said(level: str, left: int | None, budget: int | None, full_in_s: float | None) -> str:
    if level == "ok" or left is None or not budget:
        return "" if level == "ok" else "the slot's WAL is no longer reserved; the next checkpoint may take it away"
    when = f", full in {duration_text(full_in_s)} at the present rate" if full_in_s is not None else ""
    return (f"{100 * left / budget:.0f} % of the WAL budget is left ({left >> 20} of {budget >> 20} MiB{when}); "
            "the reader must catch up, or raise max_slot_wal_keep_size")
