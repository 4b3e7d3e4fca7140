"""What a look does for a table of which the stream has told nothing yet, on a real broker [S7]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from millrace.model.progress import SchemaVersion
from millrace.model.sources import SourceSpec
from millrace.model.tables import Column, TableSchema
from millrace.source.reading.keeper import Keeper
from support_session import OID, SOURCE, T, a_session

NOBODY = cast(Any, None)           # no database, office or slot takes part


def test_S7_a_table_whose_reader_died_before_it_named_the_schema_is_named_by_the_next_one(tmp_path: Path) -> None:
    """Its topics are there and no row may ever come: dispatchers would wait for its schema for good."""
    async def main() -> None:
        async with a_session(tmp_path) as world:
            keeper = Keeper(spec=SourceSpec(name=SOURCE, url=""), database=NOBODY, setup=NOBODY, watch=NOBODY,
                            office=NOBODY, shared=world.shared, plan_joined=NOBODY, debts=NOBODY)
            keeper.session = world.session
            assert OID in world.shared.partitions
            await keeper._name(T)
            wider = TableSchema(OID, "public", "t", "d", (*T.columns, Column("w", 23)))
            await keeper._name(wider)                # the stream tells a change, not a look
            told = [one for one in await world.progress() if isinstance(one, SchemaVersion)]
            assert [(one.table.id, one.commit_lsn, one.seq) for one in told] == [(T.id, 100, -1)]
            assert world.shared.standing.schemas.in_force == {OID: T}
            assert world.session.decoder.tables == {OID: T}

    asyncio.run(main())
