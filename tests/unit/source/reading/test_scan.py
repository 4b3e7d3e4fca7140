"""What a reader finds in the log when it starts [S3, S8]."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millrace.core.sources.copies import Attempt
from millrace.core.sources.registry import SourceState
from millrace.model.progress import End, HighMark, Mark, SchemaVersion
from millrace.model.tables import Place
from millrace.ops.real import real_ports
from millrace.source.reading.lanes import Lanes
from millrace.source.reading.scan import Standing, scan
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, encode_header
from millrace.wire.records import Record
from support_session import EPOCH, OID, SOURCE, TABLE, T, World, a_session

P = (OID, 0)


def record(lsn: int, *, part: int = 0, parts: int = 1, generation: int = 1, rows: int = 1) -> Record:
    header = BatchHeader(kind=BatchKind.ROWS, schema_id=T.id.bytes, generation=generation, epoch=EPOCH, first_lsn=lsn,
                         first_seq=0, last_lsn=lsn, last_seq=0, rows=rows, part=part, parts=parts)
    return Record(b"x", headers=((HEADER_KEY, encode_header(header)),))


async def next_reader(world: World) -> tuple[Standing, Lanes]:
    await world.lanes.flush()
    lanes = Lanes(world.client, clock=real_ports().clock, progress=world.lanes._progress_topic,
                  fences=[(world.lanes._fences[-1][0], EPOCH + 1)])
    state = SourceState(SOURCE, generation=1, tables={OID: TABLE})
    return await scan(world.client, lanes, state), lanes


def test_S8_a_run_of_parts_that_has_no_end_is_not_there(tmp_path: Path) -> None:
    """Its row would be left out as written, and be lost."""
    async def main() -> None:
        async with a_session(tmp_path) as world:
            world.lanes.append(P, [record(300)], lambda end: None)
            world.lanes.append(P, [record(400, part=0, parts=3), record(400, part=1, parts=3)], lambda end: None)
            standing, lanes = await next_reader(world)
            assert standing.tails == {P: Place(300, 0)}
            lanes.close()

    asyncio.run(main())


def test_S3_tails_are_looked_for_behind_the_last_mark_and_of_this_generation(tmp_path: Path) -> None:
    async def main() -> None:
        async with a_session(tmp_path) as world:
            ends: list[int] = []
            world.lanes.append(P, [record(300)], ends.append)
            await world.lanes.flush()
            await world.lanes.tell(SchemaVersion(1, T, 100, 0), Mark(1, 300, "s", 1, True, (End(OID, 0, ends[0]),)))
            standing, lanes = await next_reader(world)
            assert standing.tails == {}
            assert standing.mark is not None
            assert (standing.mark.resolved, standing.mark.ends) == (300, {P: ends[0]})
            assert standing.schemas.in_force == {OID: T}
            lanes.append(P, [record(500, generation=2), record(600)], lambda end: None)
            await lanes.tell(HighMark(1, 5, 6, 7, 600), HighMark(2, 8, 8, 8, 600))
            await lanes.flush()
            after = Lanes(world.client, clock=real_ports().clock, progress=world.lanes._progress_topic,
                          fences=[(world.lanes._fences[-1][0], EPOCH + 2)])
            found = await scan(world.client, after, SourceState(SOURCE, generation=1, tables={OID: TABLE}))
            assert found.tails == {P: Place(600, 0)}
            assert found.high_marks == [Attempt(5, 6, 7)]
            assert found.log_ends == {P: (await world.client.ends(TABLE.topic, 0))[1]}
            lanes.close()
            after.close()

    asyncio.run(main())
