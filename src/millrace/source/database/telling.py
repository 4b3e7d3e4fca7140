"""A table's present schema, told in the WAL by ourselves, where no event trigger does [S7].

In: a connection and a table as a look has found it. Out: a message as the trigger writes it, or none. Promise: what it
says holds where it stands: no statement can change the table between the look under our lock and the commit. Nobody
waits long for the lock, which is that of a SELECT.
"""

from __future__ import annotations

import json

import psycopg

from millrace.model.tables import TableSchema
from millrace.source.database.catalog import Table, quoted, tables_by_oid
from millrace.source.database.connect import Connection
from millrace.source.database.sql import message_prefix

_SAY = "SELECT pg_catalog.pg_logical_emit_message(true, %s, pg_catalog.convert_to(%s, 'UTF8'))"


async def tell_schema(connection: Connection, source: str, table: Table) -> bool:
    """False: it is another one by now, or cannot be locked; the next look sees."""
    try:
        async with connection.transaction():
            name = quoted(table.schema, table.name)
            await connection.execute(f"LOCK TABLE ONLY {name} IN ACCESS SHARE MODE".encode())
            now = (await tables_by_oid(connection, [table.oid])).get(table.oid)
            if now is None or now.version.full_name != table.full_name:      # the name may be another table's
                return False
            await connection.execute(_SAY.encode(), [message_prefix(source), json.dumps(schema_message(now.version))])
            return True
    except psycopg.Error:
        if connection.closed:
            raise
    return False


def schema_message(table: TableSchema) -> dict[str, object]:
    """As the trigger says it (`source.database.sql`), but for what no id depends on: that comes by another way."""
    columns = [[at + 1, column.name, column.type_oid, column.typmod, column.type_name, False, column.is_key]
               for at, column in enumerate(table.columns)]
    return {"kind": "ddl", "tag": "", "oid": table.oid, "schema": table.schema, "name": table.name,
            "identity": table.identity, "columns": columns, "key": [table.columns[i].name for i in table.key_order],
            "query": ""}
