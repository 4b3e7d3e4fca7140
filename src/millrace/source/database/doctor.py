"""`millrace doctor URL`: is this database fit to be a source, and if not, which SQL makes it so [S10].

In: a URL and the rules of tables, maybe a source that exists already. Out: findings, each with what is wrong and the
exact SQL that repairs it. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from millrace.core.sources.registry import slot_name
from millrace.core.sources.table_rules import TableRules
from millrace.errors import MillraceError
from millrace.model.sources import SourceSpec
from millrace.ops.secrets import ANYWHERE
from millrace.source.database import sql as texts
from millrace.source.database.catalog import quoted
from millrace.source.database.connect import Connection, Database
from millrace.source.database.doctor_tables import examine_publication, examine_tables
from millrace.source.database.findings import Finding, say, text_of
from millrace.source.database.guard import SlotGuard, slot_state
from millrace.source.server.installations import MINIMUM

__all__ = ["Finding", "diagnose"]

SENDERS_NEEDED = 2                  # the stream, and the next reader while the last one ends
SLOTS_NEEDED = 1
OLD_TRANSACTION_S = 3600
IDLE_TRANSACTION_S = 300
STALE_SLOT_BYTES = 1 << 30
WORK_MEM_KIB = 65536                # PostgreSQL's default
SENDER_TIMEOUT_MS = 10_000          # twice our status interval
KEEP_SIZE = "64GB"                  # what we propose for max_slot_wal_keep_size


@dataclass(frozen=True)
class Server:
    """What the checks share."""

    connection: Connection
    database: Database
    settings: dict[str, str]
    role: str
    is_superuser: bool
    may_replicate: bool
    in_recovery: bool

    @property
    def version(self) -> int:
        return int(self.settings["server_version_num"])

    async def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = await self.connection.execute(query.encode(), values or None)
        return await cursor.fetchall()


async def diagnose(url: str, rules: Sequence[str] = ("*.*",), source: SourceSpec | None = None) -> list[Finding]:
    """All findings, the worst first. A database that cannot be reached is a finding as well."""
    parsed = TableRules(rules)
    try:
        database = Database(url, source="doctor", places=ANYWHERE)
        connection = await database.connect()
    except MillraceError as error:
        return [say("error", "connect", str(error))]
    try:
        async with connection:
            server = await _server(database, connection)
            found = [*_version(server), *_wal_level(server), *await _room(server, source), *_role(server, source),
                     *await _slots(server, source), *_memory_and_time(server), *await _transactions(server),
                     *await _failover(server), *await _disk(server), *_encoding(server)]
            found += await examine_publication(connection, parsed, source)
            found += await examine_tables(connection, parsed, source, role=server.role)
    except psycopg.Error as error:
        found = [say("error", "connect", str(database.error(error, "examine")))]
    order = ("error", "warning", "info")
    return sorted(found, key=lambda finding: order.index(finding.severity))


async def _server(database: Database, connection: Connection) -> Server:
    cursor = await connection.execute("SELECT name, setting FROM pg_catalog.pg_settings")
    settings = {str(name): str(value) for name, value in await cursor.fetchall()}
    cursor = await connection.execute(
        "SELECT current_user::text, rolsuper, rolreplication OR rolsuper OR EXISTS (SELECT FROM pg_catalog.pg_roles g"
        " WHERE g.rolname = 'rds_replication' AND pg_catalog.pg_has_role(g.oid, 'MEMBER')),"
        " pg_catalog.pg_is_in_recovery() FROM pg_catalog.pg_roles WHERE rolname = current_user")
    row = await cursor.fetchone()
    assert row is not None
    return Server(connection, database, settings, *row)


# -- the server --------------------------------------------------------------------------------------------------------


def _version(server: Server) -> list[Finding]:
    major = server.version // 10000
    found = []
    if major < MINIMUM:
        found.append(say("error", "version", f"PostgreSQL {major} is too old; {MINIMUM} is the oldest that works"))
    if server.in_recovery:
        found.append(say("error", "standby", "this is a standby; give the URL of the primary"))
    return found


def _wal_level(server: Server) -> list[Finding]:
    level = server.settings["wal_level"]
    if level == "logical":
        return []
    return [say("error", "wal_level", f"wal_level is {level}; changes cannot be read from such WAL",
                "ALTER SYSTEM SET wal_level = 'logical';", restart=True)]


async def _room(server: Server, source: SourceSpec | None) -> list[Finding]:
    ((slots, senders, own),) = await server.ask(
        "SELECT (SELECT count(*) FROM pg_catalog.pg_replication_slots),"
        " (SELECT count(*) FROM pg_catalog.pg_stat_replication),"
        " (SELECT count(*) FROM pg_catalog.pg_replication_slots WHERE slot_name = %s)", _slot(source))
    return [
        *_limit(server, "max_replication_slots", used=slots, needed=SLOTS_NEEDED - own),
        *_limit(server, "max_wal_senders", used=senders, needed=SENDERS_NEEDED - own),
    ]


def _limit(server: Server, name: str, *, used: int, needed: int) -> list[Finding]:
    allowed = int(server.settings[name])
    if allowed - used >= needed:
        return []
    return [say("error", name, f"{name} is {allowed} and {used} are in use; {needed} more are needed",
                f"ALTER SYSTEM SET {name} = {max(10, used + 2 * SENDERS_NEEDED)};", restart=True)]


def _role(server: Server, source: SourceSpec | None) -> list[Finding]:
    found = []
    if not server.may_replicate:
        found.append(say("error", "replication", f"role {server.role} may not replicate",
                         f"ALTER ROLE {quoted(server.role)} REPLICATION;"))
    wants_triggers = source is None or source.ddl_triggers != "off"
    if not server.is_superuser and wants_triggers:
        found.append(say(
            "error" if source is not None and source.ddl_triggers == "on" else "info", "event_triggers",
            f"role {server.role} is not a superuser, so it cannot make event triggers: a schema change is then seen "
            "with the next changed row of its table, not at once"))
    return found


def _memory_and_time(server: Server) -> list[Finding]:
    found = []
    memory_kib = int(server.settings["logical_decoding_work_mem"])
    if memory_kib < WORK_MEM_KIB:
        found.append(say("warning", "logical_decoding_work_mem",
                         f"logical_decoding_work_mem is {memory_kib} kB: middle-sized transactions are spilled to disk",
                         "ALTER SYSTEM SET logical_decoding_work_mem = '64MB';", "SELECT pg_reload_conf();"))
    if server.settings.get("idle_replication_slot_timeout", "0") != "0":      # from 18 on
        found.append(say("warning", "idle_replication_slot_timeout", "idle_replication_slot_timeout is set: when the "
                         "reader is away for that long the slot is lost and all tables are copied again",
                         "ALTER SYSTEM SET idle_replication_slot_timeout = 0;", "SELECT pg_reload_conf();"))
    timeout_ms = int(server.settings["wal_sender_timeout"])
    if 0 < timeout_ms < SENDER_TIMEOUT_MS:
        found.append(say("warning", "wal_sender_timeout", f"wal_sender_timeout is {timeout_ms} ms; a short pause of "
                         "the network ends the stream", "ALTER SYSTEM SET wal_sender_timeout = '60s';",
                         "SELECT pg_reload_conf();"))
    return found


def _encoding(server: Server) -> list[Finding]:
    if server.settings["server_encoding"] != "SQL_ASCII":
        return []
    return [say("warning", "encoding", "the database is SQL_ASCII: text in it that is not UTF-8 cannot be carried")]


# -- slots and WAL -----------------------------------------------------------------------------------------------------


def _slot(source: SourceSpec | None) -> str:
    return slot_name(source) if source is not None else ""


async def _slots(server: Server, source: SourceSpec | None) -> list[Finding]:
    found = []
    if int(server.settings["max_slot_wal_keep_size"]) < 0:
        found.append(say("warning", "max_slot_wal_keep_size", "max_slot_wal_keep_size is unlimited: a slot that nobody "
                         "reads fills the disk, and the database stops",
                         f"ALTER SYSTEM SET max_slot_wal_keep_size = '{KEEP_SIZE}';", "SELECT pg_reload_conf();"))
    if source is not None:
        found += await _own_slot(server, source)
    stale = await server.ask(
        "SELECT slot_name::text, pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), restart_lsn)::int8"
        " FROM pg_catalog.pg_replication_slots WHERE NOT active AND restart_lsn IS NOT NULL AND slot_name <> %s"
        " AND pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), restart_lsn) > %s",
        _slot(source), STALE_SLOT_BYTES) if not server.in_recovery else []
    for name, held in stale:
        found.append(say("warning", "stale_slot", f"slot {name} is read by nobody and holds back {held >> 20} MiB of "
                         "WAL; if nobody will come back for it:", texts.drop_slot(name)))
    return found


async def _own_slot(server: Server, source: SourceSpec) -> list[Finding]:
    state = await slot_state(server.connection, slot_name(source))
    if state is None:
        return []
    health = SlotGuard(source.wal_budget_bytes).look(state, 0.0)
    if health.level == "lost":
        return [say("error", "slot_lost", f"slot {state.name}: {health.text}; a new slot is made and the tables are "
                    "copied when the old one is gone", texts.drop_slot(state.name))]
    found = []
    if health.level != "ok":
        found.append(say("error" if health.level == "urgent" else "warning", "wal_budget",
                         f"slot {state.name}: {health.text}"))
    if server.version >= 170000 and not state.is_failover:
        found.append(say("info", "slot_failover", f"slot {state.name} was made without FAILOVER: it is lost with this "
                         "server; on a replication connection: "
                         f"ALTER_REPLICATION_SLOT {quoted(state.name)} (FAILOVER true)"))
    return found


async def _disk(server: Server) -> list[Finding]:
    """How full the disk is no SQL tells; how much of it is WAL does, to those who may ask."""
    try:
        ((held,),) = await server.ask("SELECT coalesce(sum(size), 0)::int8 FROM pg_catalog.pg_ls_waldir()")
    except psycopg.errors.InsufficientPrivilege:
        return []
    usual = int(server.settings["max_wal_size"]) << 20
    if held <= 4 * usual:
        return []
    return [say("warning", "wal_size", f"{held >> 20} MiB of WAL are on disk, {held // usual} times max_wal_size: a "
                "slot, a standby or the archiver is behind")]


async def _failover(server: Server) -> list[Finding]:
    standbys = await server.ask(
        "SELECT slot_name::text FROM pg_catalog.pg_replication_slots WHERE slot_type = 'physical' AND active"
        " ORDER BY slot_name")      # a name that no standby uses would hold up the stream
    if not standbys:
        return []
    if server.version < 170000:
        return [say("info", "failover", "there are standbys, but before PostgreSQL 17 a slot does not survive a "
                    "fail-over: the tables are then copied again")]
    if server.settings.get("synchronized_standby_slots"):
        return []
    names = ", ".join(name for (name,) in standbys)
    return [say("warning", "failover", "synchronized_standby_slots is empty: after a fail-over the stream may be ahead "
                "of the new primary. Each standby also needs sync_replication_slots = on, hot_standby_feedback = on "
                "and dbname in primary_conninfo",
                f"ALTER SYSTEM SET synchronized_standby_slots = {texts.literal(names)};", "SELECT pg_reload_conf();")]


# -- transactions ------------------------------------------------------------------------------------------------------


async def _transactions(server: Server) -> list[Finding]:
    """They keep the slot from being made, and the catalogue's old rows and WAL from going."""
    found = []
    for pid, user, application, state, seconds in await server.ask(
        "SELECT pid, usename::text, application_name, state, extract(epoch FROM now() - xact_start)::int8"
        " FROM pg_catalog.pg_stat_activity WHERE pid <> pg_catalog.pg_backend_pid() AND backend_type = 'client backend'"
        " AND (now() - xact_start > make_interval(secs => %s)"
        "      OR state LIKE 'idle in transaction%%' AND now() - state_change > make_interval(secs => %s))"
        " ORDER BY xact_start LIMIT 10", OLD_TRANSACTION_S, IDLE_TRANSACTION_S,
    ):
        found.append(say("warning", "long_transaction", f"pid {pid} ({text_of(user)}, {text_of(application)}) has been "
                         f"{state} in one transaction for {seconds} s: WAL and old rows pile up behind it",
                         f"SELECT pg_terminate_backend({pid});"))
    for gid, seconds in await server.ask(
        "SELECT gid, extract(epoch FROM now() - prepared)::int8 FROM pg_catalog.pg_prepared_xacts"
        " WHERE now() - prepared > make_interval(secs => %s) ORDER BY prepared LIMIT 10", IDLE_TRANSACTION_S,
    ):
        found.append(say("warning", "prepared_transaction", f"transaction {gid} was prepared {seconds} s ago and not "
                         "ended: no slot can be made, WAL piles up", f"ROLLBACK PREPARED {texts.literal(gid)};"))
    return found


