"""The SQL by which a source is set up and taken down: publication, event triggers, slot.

Out: statements as text, ready to run or to print for somebody who may run them; every name is quoted. The trigger
functions run inside statements of the application: they swallow every error, raise no privilege (they run as who calls
them), and look at nothing outside pg_catalog [S11].
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from millrace.source.database.catalog import quoted
from millrace.wire.pg.facts import TYPES

QUERY_CHARS_MAX = 10_000      # of a statement's text, for people
DEFAULT_CHARS_MAX = 1_000     # of a column's default, for descriptions of rows

# A row filter on the tag of the outer statement: CREATE SCHEMA may hold CREATE TABLE.
_TAGS = ("CREATE TABLE", "CREATE TABLE AS", "SELECT INTO", "ALTER TABLE", "CREATE SCHEMA")


def literal(text: str) -> str:
    return sql.Literal(text).as_string()


def message_prefix(source: str) -> str:
    """Of all logical messages a source writes into its database's WAL."""
    return f"millrace.{source}"


def own_schema(source: str) -> str:
    """Holds the trigger functions."""
    return f"millrace_{source}"


def trigger_names(source: str) -> tuple[str, str]:
    return f"millrace_{source}_ddl", f"millrace_{source}_drop"


def made_by(source: str) -> str:
    """The comment by which we know our own publication."""
    return f"made by millrace for source {source}"


# -- publication -------------------------------------------------------------------------------------------------------


def create_publication(publication: str, source: str) -> list[str]:
    """Empty; tables are added one by one. Rows of partitions come under their root."""
    return [f"CREATE PUBLICATION {quoted(publication)} WITH (publish_via_partition_root = true);",
            f"COMMENT ON PUBLICATION {quoted(publication)} IS {literal(made_by(source))};"]


def publish(publication: str, schema: str, name: str) -> str:
    """ONLY: tables that inherit from it are tables of their own."""
    return publish_all(publication, [(schema, name)])


def publish_all(publication: str, tables: Iterable[tuple[str, str]]) -> str:
    names = ", ".join(f"ONLY {quoted(*table)}" for table in tables)
    return f"ALTER PUBLICATION {quoted(publication)} ADD TABLE {names};"


def unpublish(publication: str, schema: str, name: str) -> str:
    return f"ALTER PUBLICATION {quoted(publication)} DROP TABLE ONLY {quoted(schema, name)};"


# -- slot --------------------------------------------------------------------------------------------------------------


def create_slot(slot: str, *, server_version: int) -> str:
    """A replication command. From 17 on the slot can live on after a fail-over."""
    if server_version < 150000:
        return f"CREATE_REPLICATION_SLOT {quoted(slot)} LOGICAL pgoutput EXPORT_SNAPSHOT"
    failover = ", FAILOVER true" if server_version >= 170000 else ""
    return f"CREATE_REPLICATION_SLOT {quoted(slot)} LOGICAL pgoutput (SNAPSHOT 'export'{failover})"


def drop_slot(slot: str) -> str:
    return f"SELECT pg_catalog.pg_drop_replication_slot({literal(slot)});"


# -- event triggers ----------------------------------------------------------------------------------------------------

# What a table is now, as pgoutput will name it; `key` as the catalogue room understands it. In UTF-8 whatever the
# database's own encoding is: the stream passes a message's bytes through unchanged.
_TELL = """
    PERFORM pg_logical_emit_message(true, {prefix}, convert_to(json_build_object(
        'kind', 'ddl', 'tag', tg_tag, 'oid', c.oid::int8, 'root', coalesce(pg_partition_root(c.oid), c.oid)::oid::int8,
        'schema', n.nspname, 'name', c.relname, 'relkind', c.relkind, 'identity', c.relreplident,
        'columns', (
            SELECT coalesce(json_agg(json_build_array(a.attnum, a.attname, a.atttypid::int8, a.atttypmod,
                       format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attnum = ANY(coalesce(k.columns, '{{}}')))
                   ORDER BY a.attnum), '[]')
            FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''),
        'defaults', (
            SELECT coalesce(json_agg(left(pg_get_expr(d.adbin, d.adrelid), {default_chars}) ORDER BY a.attnum), '[]')
            FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''),
        'key', (
            SELECT coalesce(json_agg(a.attname ORDER BY p.place), '[]')
            FROM unnest(k.columns) WITH ORDINALITY p(attnum, place)
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = p.attnum),
        'types', (
            SELECT coalesce(json_agg(json_build_array(t.oid, t.kind, t.name, t.labels, t.typmod, t.inner_oid)), '[]')
            FROM ({types}) t),
        'query', left(current_query(), {chars}))::text, 'UTF8'))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN LATERAL (
        SELECT i.indkey[0:i.indnkeyatts - 1]::int2[] AS columns FROM pg_index i
        WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND c.relreplident <> 'n'
          AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END) k ON true
    WHERE c.oid = told.objid AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't';
"""

_FUNCTION = """CREATE OR REPLACE FUNCTION {name}() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog
AS $millrace${body}$millrace$;"""

_ON_DDL = """
DECLARE told record;
BEGIN
  FOR told IN SELECT DISTINCT objid FROM pg_event_trigger_ddl_commands()
              WHERE classid = 'pg_class'::regclass AND object_type IN ('table', 'table column') LOOP{tell}  END LOOP;
EXCEPTION WHEN OTHERS THEN
  RAISE LOG 'millrace: a schema change was not told: %', SQLERRM;
END"""

_ON_DROP = """
DECLARE told record;
BEGIN
  FOR told IN SELECT DISTINCT objid, schema_name, object_name FROM pg_event_trigger_dropped_objects()
              WHERE object_type = 'table' AND NOT is_temporary LOOP
    PERFORM pg_logical_emit_message(true, {prefix}, convert_to(json_build_object(
        'kind', 'drop', 'tag', tg_tag, 'oid', told.objid::int8, 'schema', told.schema_name, 'name', told.object_name,
        'query', left(current_query(), {chars}))::text, 'UTF8'));
  END LOOP;
  -- a type dropped with CASCADE takes columns with it, and no ALTER TABLE tells so
  FOR told IN SELECT DISTINCT objid FROM pg_event_trigger_dropped_objects()
              WHERE object_type = 'table column' AND NOT is_temporary AND tg_tag <> 'ALTER TABLE' LOOP{tell}  END LOOP;
EXCEPTION WHEN OTHERS THEN
  RAISE LOG 'millrace: a dropped table was not told: %', SQLERRM;
END"""


def trigger_bodies(source: str) -> tuple[str, str]:
    """Of the two functions; compared with what is there, so that an unchanged set-up is left alone."""
    names = {"prefix": literal(message_prefix(source)), "chars": QUERY_CHARS_MAX, "default_chars": DEFAULT_CHARS_MAX,
             "types": TYPES.format(columns="a.attrelid = c.oid")}
    tell = _TELL.format(**names)
    return _ON_DDL.format(tell=tell, **names), _ON_DROP.format(tell=tell, **names)


def create_triggers(source: str) -> list[str]:
    """All or nothing: in one transaction. ALWAYS: also in sessions that switched ordinary triggers off."""
    schema, (ddl, drop), (ddl_body, drop_body) = own_schema(source), trigger_names(source), trigger_bodies(source)
    when = f"WHEN TAG IN ({', '.join(literal(tag) for tag in _TAGS)})"
    on_ddl, on_drop = quoted(schema, "on_ddl"), quoted(schema, "on_drop")
    return [
        f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};",
        _FUNCTION.format(name=on_ddl, body=ddl_body),
        _FUNCTION.format(name=on_drop, body=drop_body),
        *(f"DROP EVENT TRIGGER IF EXISTS {quoted(name)};" for name in (ddl, drop)),
        f"CREATE EVENT TRIGGER {quoted(ddl)} ON ddl_command_end {when} EXECUTE FUNCTION {on_ddl}();",
        f"CREATE EVENT TRIGGER {quoted(drop)} ON sql_drop EXECUTE FUNCTION {on_drop}();",
        *(f"ALTER EVENT TRIGGER {quoted(name)} ENABLE ALWAYS;" for name in (ddl, drop)),
    ]


def drop_triggers(source: str) -> list[str]:
    schema = own_schema(source)
    return [
        *(f"DROP EVENT TRIGGER IF EXISTS {quoted(name)};" for name in trigger_names(source)),
        *(f"DROP FUNCTION IF EXISTS {quoted(schema, name)}();" for name in ("on_ddl", "on_drop")),
        f"DROP SCHEMA IF EXISTS {quoted(schema)};",
    ]
