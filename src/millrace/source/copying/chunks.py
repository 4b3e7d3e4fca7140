"""Planning a copy: which part of a table each chunk reads [S4, S5].

In: a table and a connection. Out: `ChunkSpan`s that cover every row once. Promise: spans of one plan never overlap and
leave nothing out, whatever is written meanwhile: the last one is open-ended, so rows that move behind the last known
block or key belong to it.

    by block   a snapshot copy                       ctid ranges of every leaf relation
    by key     a later copy                          (low, high] in the order of the table's own key operators
    whole      a table without a key, at any time

Blocks cannot serve later copies of keyed tables: a row that is updated moves, and would be missed by a chunk that was
read before and one that is read later. Keys stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from psycopg import AsyncConnection, sql
from psycopg.errors import UndefinedFunction

from millrace.limits import COPY_CHUNK_BYTES, COPY_CHUNKS_MAX, COPY_PLAN_BYTES_MAX
from millrace.model.sources import ChunkSpan
from millrace.model.tables import Oid, TableSchema
from millrace.wire.pg.copybinary import quoted

Connection = AsyncConnection[Any]
Key = tuple[str, ...]

SAMPLED_BLOCKS_PER_CHUNK = 16    # at some 40 rows a block: bounds within a few percent of equal shares


class Leaf(NamedTuple):
    """A relation that holds rows: the table itself, or a leaf of its partitions."""

    oid: Oid
    blocks: int
    file: int                    # its file's number: another one means every row may stand elsewhere
    bytes: int = -1              # with its large values, which stand elsewhere; -1: not known


# -- by block ----------------------------------------------------------------------------------------------------------


def block_spans(leaves: Iterable[Leaf], *, block_bytes: int, chunk_bytes: int = COPY_CHUNK_BYTES) -> list[ChunkSpan]:
    """Ranges of blocks, about `chunk_bytes` each; the last of every leaf is open."""
    leaves = list(leaves)
    per_chunk = max(1, chunk_bytes // block_bytes)
    while sum(_count(leaf, per_chunk) for leaf in leaves) > COPY_CHUNKS_MAX and _can_grow(leaves, per_chunk):
        per_chunk *= 2
    return [span for leaf in leaves for span in _spans_of(leaf, per_chunk)]


def _count(leaf: Leaf, per_chunk: int) -> int:
    return max(1, math.ceil(leaf.blocks / per_chunk))


def _can_grow(leaves: Sequence[Leaf], per_chunk: int) -> bool:
    """A table of more leaves than chunks allowed still needs one chunk each."""
    return any(leaf.blocks > per_chunk for leaf in leaves)


def _spans_of(leaf: Leaf, per_chunk: int) -> list[ChunkSpan]:
    starts = [number * per_chunk for number in range(_count(leaf, per_chunk))]
    ends = [*starts[1:], -1]
    bytes_ = _share(leaf.bytes, len(starts))
    return [ChunkSpan(leaf.oid, start, end, file=leaf.file, bytes=bytes_)
            for start, end in zip(starts, ends, strict=True)]


def _share(bytes_: int, chunks: int) -> int:
    return math.ceil(bytes_ / chunks) if bytes_ >= 0 else -1


# -- by key ------------------------------------------------------------------------------------------------------------


def key_spans(relation: Oid, bounds: Sequence[Key], *, bytes_: int = -1) -> list[ChunkSpan]:
    """Ranges (low, high] between ascending bounds; first and last are open. `bytes_`: of all of them."""
    lows: list[Key | None] = [None, *bounds]
    highs: list[Key | None] = [*bounds, None]
    share = _share(bytes_, len(lows))
    return [ChunkSpan(relation, low_key=low, high_key=high, by_key=True, bytes=share)
            for low, high in zip(lows, highs, strict=True)]


def whole_table(table: TableSchema, leaves: Iterable[Leaf]) -> list[ChunkSpan]:
    """One chunk. Without a key nothing tells what became of a row between the snapshots of two chunks."""
    return key_spans(table.oid, [], bytes_=sum(leaf.bytes for leaf in leaves))


def thin(bounds: Sequence[Key], *, bytes_max: int = COPY_PLAN_BYTES_MAX) -> list[Key]:
    """Every second bound is dropped until a plan of long keys fits its durable record."""
    kept = list(bounds)
    while sum(len(part.encode()) + 8 for key in kept for part in key) * 2 > bytes_max:
        kept = kept[1::2]
    return kept


# -- asking the database -----------------------------------------------------------------------------------------------


async def plan_blocks(conn: Connection, table: TableSchema, *, chunk_bytes: int = COPY_CHUNK_BYTES) -> list[ChunkSpan]:
    """Chunks of a snapshot copy. Plan after the snapshot was taken, or later: what was
    written since then stands in the open range or is not seen by the snapshot."""
    leaves = await leaves_of(conn, table.oid)
    if not table.keys:
        return whole_table(table, leaves)
    return block_spans(leaves, block_bytes=await block_bytes_of(conn), chunk_bytes=chunk_bytes)


async def plan_windows(conn: Connection, table: TableSchema, *, chunk_bytes: int = COPY_CHUNK_BYTES) -> list[ChunkSpan]:
    """Chunks of a later copy."""
    leaves = await leaves_of(conn, table.oid)
    if not table.keys:
        return whole_table(table, leaves)
    block_bytes = await block_bytes_of(conn)
    blocks, bytes_ = sum(leaf.blocks for leaf in leaves), sum(leaf.bytes for leaf in leaves)
    chunks = min(COPY_CHUNKS_MAX, math.ceil(blocks * block_bytes / chunk_bytes))
    if chunks <= 1:
        return key_spans(table.oid, [], bytes_=bytes_)
    bounds = thin(await _sampled_bounds(conn, table, chunks=chunks, blocks=blocks))
    return key_spans(table.oid, bounds, bytes_=bytes_)


class Empty(NamedTuple):
    """Tables in which a snapshot shows no row, each with its file, and the snapshot as pg_current_snapshot() prints
    it."""

    files: dict[Oid, int]
    snapshot: str


async def empty_in(conn: Connection, exported: str, oids: Sequence[Oid]) -> Empty:
    """Plain tables whose file is the one that the snapshot knows and has no block. As long as somebody holds the
    snapshot nothing takes a row away that it shows; a rewrite gives the table another file, so the file is looked at
    before and behind its size. Each look is a transaction of its own: what others did is seen by its beginning."""
    async with conn.transaction():
        await conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(exported)))
        cursor = await conn.execute(_FILES_SEEN, {"oids": list(oids)})
        seen = {oid: file for oid, file, now in await cursor.fetchall() if file == now}
        row = await (await conn.execute("SELECT pg_catalog.pg_current_snapshot()::text")).fetchone()
    assert row is not None
    sizes = await (await conn.execute(_SIZES, {"oids": list(seen)})).fetchall()
    files = dict(await (await conn.execute(_FILES_NOW, {"oids": list(seen)})).fetchall())
    return Empty({oid: seen[oid] for oid, size in sizes if size == 0 and files.get(oid) == seen[oid]}, str(row[0]))


def empty_span(table: TableSchema, file: int) -> list[ChunkSpan]:
    """An empty table has one chunk all the same: it says that nothing is there."""
    leaf = Leaf(table.oid, 0, file, bytes=0)
    return block_spans([leaf], block_bytes=1) if table.keys else whole_table(table, [leaf])


async def leaves_of(conn: Connection, oid: Oid) -> list[Leaf]:
    """The relations that hold the table's rows, with their sizes now."""
    cursor = await conn.execute(_LEAVES, {"oid": oid})
    return [Leaf(*row) for row in await cursor.fetchall()]


async def block_bytes_of(conn: Connection) -> int:
    cursor = await conn.execute("SELECT pg_catalog.current_setting('block_size')::int")
    row = await cursor.fetchone()
    return int(row[0]) if row else 8192


async def _sampled_bounds(conn: Connection, table: TableSchema, *, chunks: int, blocks: int) -> list[Key]:
    """Keys that cut the table into about equal shares, from a sample of its blocks.

    Chunks compare keys with `<=`; if a key type sorts by other operators than those found by name, or the sample says
    nothing, the whole table is one chunk: slow is better than a row in no chunk.
    """
    share = min(100.0, 100.0 * chunks * SAMPLED_BLOCKS_PER_CHUNK / blocks)
    try:
        cursor = await conn.execute(_sample_query(table, chunks=chunks), {"share": share})
    except UndefinedFunction:    # a type whose operators are not in pg_catalog
        return []
    found = await cursor.fetchall()
    if not all(row[-1] for row in found):
        return []
    return [tuple(str(part) for part in row[:-1]) for row in found]


def _sample_query(table: TableSchema, *, chunks: int) -> sql.Composed:
    """One row per bound: its key as text, and whether it stands above the bound before it."""
    names = [table.columns[index].name for index in table.keys]
    keys = [sql.Identifier(name) for name in names]
    before = [sql.Identifier(f"before {number}") for number in range(len(names))]
    return sql.SQL(
        "SELECT {texts}, COALESCE(({before}) < ({keys}), true) FROM ("
        " SELECT {keys}, {lags} FROM ("
        "  SELECT {keys}, row_number() OVER (ORDER BY {keys}) AS \"place of row\", count(*) OVER () AS \"all rows\""
        "  FROM {relation} TABLESAMPLE SYSTEM (%(share)s)) AS sampled"
        " WHERE \"place of row\" < \"all rows\" AND mod(\"place of row\", greatest(\"all rows\" / {chunks}, 1)) = 0"
        " WINDOW places AS (ORDER BY \"place of row\")) AS bounds"
    ).format(
        texts=_comma(sql.SQL("format('%%s', {})").format(key) for key in keys),
        keys=_comma(keys),
        before=_comma(before),
        lags=_comma(sql.SQL("lag({}) OVER places AS {}").format(key, name)
                    for key, name in zip(keys, before, strict=True)),
        relation=sql.Identifier(table.schema, table.name),
        chunks=sql.Literal(chunks),
    )


def _comma(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(list(parts))


_FILES_SEEN = """
SELECT c.oid::bigint, c.relfilenode::bigint, pg_catalog.pg_relation_filenode(c.oid)::bigint
FROM pg_catalog.pg_class AS c WHERE c.oid = ANY(%(oids)s) AND c.relkind = 'r'
"""
_SIZES = "SELECT oid, pg_catalog.pg_relation_size(oid::oid) FROM pg_catalog.unnest(%(oids)s::bigint[]) AS oid"
_FILES_NOW = """
SELECT oid, pg_catalog.pg_relation_filenode(oid::oid)::bigint FROM pg_catalog.unnest(%(oids)s::bigint[]) AS oid
"""

_LEAVES = """
SELECT c.oid::bigint, (coalesce(pg_catalog.pg_relation_size(c.oid), 0)
                       / pg_catalog.current_setting('block_size')::bigint)::bigint,
       pg_catalog.pg_relation_filenode(c.oid)::bigint, coalesce(pg_catalog.pg_table_size(c.oid), 0)::bigint
FROM (SELECT relid::oid AS oid FROM pg_catalog.pg_partition_tree(%(oid)s::oid::regclass) WHERE isleaf
      UNION SELECT %(oid)s::oid) AS part
JOIN pg_catalog.pg_class AS c ON c.oid = part.oid AND c.relkind = 'r'
ORDER BY c.oid
"""


# -- what a chunk reads ------------------------------------------------------------------------------------------------


def span_condition(table: TableSchema, span: ChunkSpan) -> str:
    """The chunk's rows, as a condition. Bounds are literals of unknown type: the server takes them as the key's."""
    if not span.by_key:
        conditions = [f"ctid >= '({span.from_block},0)'::pg_catalog.tid"] if span.from_block else []
        if span.to_block >= 0:
            conditions.append(f"ctid < '({span.to_block},0)'::pg_catalog.tid")
        return " AND ".join(conditions)
    keys = ", ".join(quoted(table.columns[index].name) for index in table.keys)
    if span.low_key is not None and span.low_key == span.high_key:
        return f"({keys}) = ({_literals(span.low_key)})"
    if span.keys:                                              # to be read again
        return " OR ".join(f"({keys}) = ({_literals(key)})" for key in span.keys)
    conditions = []
    if span.low_key is not None:
        conditions.append(f"({keys}) > ({_literals(span.low_key)})")
    if span.high_key is not None:
        conditions.append(f"({keys}) <= ({_literals(span.high_key)})")
    return " AND ".join(conditions)


def _literals(key: Key) -> str:
    return ", ".join(_literal(part) for part in key)


def _literal(text: str) -> str:
    """Safe whatever standard_conforming_strings says: a backslash makes it an escape string."""
    escaped = text.replace("'", "''")
    return "E'" + escaped.replace("\\", "\\\\") + "'" if "\\" in escaped else f"'{escaped}'"
