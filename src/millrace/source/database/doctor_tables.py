"""The doctor's look at tables and publication: keys, rights, coverage."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from millrace.core.sources.registry import publication_name, slot_name
from millrace.core.sources.table_rules import TableRules, quote_rule
from millrace.model.sources import SourceSpec
from millrace.model.tables import IDENTITY_FULL, Oid
from millrace.source.database import sql as texts
from millrace.source.database.catalog import Table, find_tables, quoted
from millrace.source.database.connect import Connection
from millrace.source.database.findings import Finding, say
from millrace.source.database.fitness import unfit
from millrace.source.database.guard import slot_state
from millrace.source.database.setup import Publication, find_publication, published

OPERATIONS = ("insert", "update", "delete", "truncate")


# -- tables ------------------------------------------------------------------------------------------------------------


async def examine_tables(connection: Connection, rules: TableRules, source: SourceSpec | None, *,
                         role: str) -> list[Finding]:
    everything = await find_tables(connection, lambda schema, name: True)
    tables = [table for table in everything if rules.takes(table.schema, table.name)]
    found = [say("warning", "idle_rule", f"rule {rule} matches no table")
             for rule in rules.idle((t.schema, t.name) for t in everything)]
    whole = TableRules(source.carry_whole if source is not None else ())
    for table in tables:
        found += _key(table, chosen=whole.takes(table.schema, table.name))
    found += await _rights(connection, tables, role)
    found += await _may_publish(connection, tables, source, role)
    return found


def _key(table: Table, *, chosen: bool) -> list[Finding]:
    could_be = unfit(table, carry_whole=True) is None
    if table.version.identity == IDENTITY_FULL and not table.version.keys and could_be and not chosen:
        rule = quote_rule(table.schema, table.name)
        return [say("info", "no_key", f"{table.full_name} has no key; its identity is FULL, so it can be carried "
                    f"whole: create the source with --carry-whole {shlex.quote(rule)}")]
    why = unfit(table, carry_whole=chosen)
    if why is None:
        return []
    return [say("error", "replica_identity", f"{table.full_name}: {why.reason}", *why.repair)]


async def _rights(connection: Connection, tables: Iterable[Table], role: str) -> list[Finding]:
    """A copy reads whole tables: row security would hide rows from it."""
    tables = list(tables)
    found = []
    unreadable = [name for table in tables for name in table.unreadable]
    for schema in dict.fromkeys(schema for schema, _ in unreadable):
        names = [quoted(*name) for name in unreadable if name[0] == schema]
        found.append(say("error", "select", f"role {role} may not read {', '.join(names)}",
                         f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)};",
                         *(f"GRANT SELECT ON {name} TO {quoted(role)};" for name in names)))
    cursor = await connection.execute(
        "SELECT c.oid::int8 FROM pg_catalog.pg_class c, pg_catalog.pg_roles r WHERE r.rolname = current_user"
        " AND c.oid = ANY(%s::oid[]) AND c.relrowsecurity AND NOT r.rolbypassrls AND NOT r.rolsuper"
        " AND (c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(c.relowner, 'USAGE'))", [[t.oid for t in tables]])
    hidden = {row[0] for row in await cursor.fetchall()}
    if hidden:
        names = [table.quoted for table in tables if table.oid in hidden]
        found.append(say("error", "row_security", f"row security hides rows of {', '.join(names)} from role {role}",
                         f"ALTER ROLE {quoted(role)} BYPASSRLS;"))
    return found


async def _may_publish(connection: Connection, tables: Iterable[Table], source: SourceSpec | None,
                       role: str) -> list[Finding]:
    """Publishing takes ownership; a publication made by somebody who has it serves as well."""
    name = publication_name(source) if source is not None else ""
    publication = await find_publication(connection, name)
    inside = await published(connection, name)
    fit = [t for t in tables if t.oid not in inside and unfit(t, carry_whole=False) is None]
    statements = [texts.publish(name, t.schema, t.name) for t in fit if not t.is_owned]
    if publication is None:
        cursor = await connection.execute("SELECT has_database_privilege(current_database(), 'CREATE')")
        row = await cursor.fetchone()
        if row is not None and row[0] and not statements:
            return []
        if source is None:
            return [say("warning", "publish", f"role {role} may not make the publication itself (it must own the "
                        "tables and have CREATE on the database); let their owner or a superuser make it. It is named "
                        "after the source: doctor … --name SOURCE prints the statements")]
        create = f"CREATE PUBLICATION {quoted(name)} WITH (publish_via_partition_root = true);"
        everything = [create, *(texts.publish(name, t.schema, t.name) for t in fit)]
        return [say("error", "publish",
                    f"role {role} may not make the publication itself (it must own the tables and have CREATE on the "
                    "database); let their owner or a superuser make it", *everything)]
    return []       # coverage is looked at with the publication


# -- publication -------------------------------------------------------------------------------------------------------


async def examine_publication(connection: Connection, rules: TableRules, source: SourceSpec | None) -> list[Finding]:
    if source is None:
        return []
    name = publication_name(source)
    publication = await find_publication(connection, name)
    if publication is None:
        if await slot_state(connection, slot_name(source)) is None:
            return []        # both are made at the next start
        return [say("error", "publication_missing", f"publication {name} is gone, though the slot is there: "
                    "changes are lost; drop the slot, then both are made anew and the tables are copied",
                    texts.drop_slot(slot_name(source)))]
    inside = await published(connection, name)
    tables = await find_tables(connection, rules.takes)
    return [*_options(name, publication), *await _of_schemas(connection, publication, name),
            *_coverage(name, tables, inside, source),
            *await _narrowed(connection, publication, name)]


async def _of_schemas(connection: Connection, publication: Publication, name: str) -> list[Finding]:
    """From 15 on a publication can take whole schemas, and so every table made in them later."""
    if connection.info.server_version < 150000:
        return []
    cursor = await connection.execute(
        "SELECT n.nspname::text FROM pg_catalog.pg_publication_namespace p"
        " JOIN pg_catalog.pg_namespace n ON n.oid = p.pnnspid WHERE p.pnpubid = %s", [publication.oid])
    return [say("warning", "publication_schemas", f"publication {name} takes all tables of schema {schema}: UPDATE and "
                "DELETE fail on every new one without a key; its tables are then to be added one by one",
                f"ALTER PUBLICATION {quoted(name)} DROP TABLES IN SCHEMA {quoted(schema)};")
            for (schema,) in await cursor.fetchall()]


def _options(name: str, publication: Publication) -> list[Finding]:
    found = []
    missing = [o for o in OPERATIONS if o not in publication.operations]
    if missing:
        found.append(say("error", "publication_operations", f"publication {name} leaves out {', '.join(missing)}",
                         f"ALTER PUBLICATION {quoted(name)} SET (publish = '{', '.join(OPERATIONS)}');"))
    if not publication.via_root:
        found.append(say("error", "publication_root", f"publication {name} shows partitions instead of their root",
                         f"ALTER PUBLICATION {quoted(name)} SET (publish_via_partition_root = true);"))
    if publication.all_tables:
        found.append(say("warning", "publication_all_tables", f"publication {name} is FOR ALL TABLES: UPDATE and "
                         "DELETE fail on every new table without a key; make one that names its tables"))
    return found


def _coverage(name: str, tables: Iterable[Table], inside: frozenset[Oid], source: SourceSpec) -> list[Finding]:
    whole = TableRules(source.carry_whole)
    missing = [t for t in tables if t.oid not in inside
               and unfit(t, carry_whole=whole.takes(t.schema, t.name)) is None]
    if not missing:
        return []
    return [say("error", "publication_coverage", f"publication {name} lacks {', '.join(t.full_name for t in missing)}: "
                "their changes do not come, and they are copied when they are back",
                *(texts.publish(name, t.schema, t.name) for t in missing))]


async def _narrowed(connection: Connection, publication: Publication, name: str) -> list[Finding]:
    """From 15 on a publication can leave out rows and columns; older ones have no such fields in their JSON."""
    cursor = await connection.execute(
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_publication_rel r"
        " CROSS JOIN LATERAL (SELECT pg_catalog.to_jsonb(r) AS row) j"
        " JOIN pg_catalog.pg_class c ON c.oid = r.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE r.prpubid = %s AND (j.row->>'prqual' IS NOT NULL OR j.row->>'prattrs' IS NOT NULL)", [publication.oid])
    return [say("warning", "publication_narrowed", f"publication {name} leaves out rows or columns of {schema}.{table}",
                texts.unpublish(name, schema, table), texts.publish(name, schema, table))
            for schema, table in await cursor.fetchall()]
