"""Between two sessions of a reader: nothing begins before all that was handed over is acknowledged [S3]."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import support_pgoutput as pg
from millrace.errors import Deposed, PublicationMissing
from millrace.model.ids import ProcessIdentity
from millrace.model.sources import SourceSpec
from millrace.ops.real import real_ports
from millrace.source.reading.reader import SourceReader
from millrace.store import Candidate, open_store
from support_brokers import until
from support_session import EPOCH, OID, SOURCE, T, World, a_session, begin, commit, insert


def test_S3_the_next_session_begins_behind_what_the_last_one_handed_over(tmp_path: Path) -> None:
    async def main() -> None:
        store = open_store(f"sqlite:{tmp_path}/store", real_ports())
        async with a_session(tmp_path) as world:
            reader = reader_of(world, tmp_path, store)
            reader._session = world.session
            await world.take(begin(300), pg.relation(T), insert(1), commit(300))
            await world.lanes.flush()
            answered = asyncio.get_running_loop().create_future()
            world.lanes._watch(answered, 10, lambda end: world.session.batcher.ends.update({(OID, 0): end}))
            settling = asyncio.create_task(reader._settle(world.shared, OSError("the connection broke")))
            await until(lambda: reader._status.state == "waiting", "it to wait for the log")
            done, _ = await asyncio.wait([settling], timeout=0.1)
            assert not done, "a row is on its way"
            assert "the log has not acknowledged 10 bytes yet" in reader._status.why
            answered.set_result(41)
            assert str(await settling) == "the connection broke"
            assert world.shared.standing.log_ends[OID, 0] == 42
            assert world.shared.standing.tails[OID, 0] == (300, 0)
            assert reader._session is None
        await store.close()

    asyncio.run(main())


def test_S3_what_only_a_new_epoch_can_mend_ends_the_reader(tmp_path: Path) -> None:
    async def main() -> None:
        store = open_store(f"sqlite:{tmp_path}/store", real_ports())
        async with a_session(tmp_path) as world:
            reader = reader_of(world, tmp_path, store)
            with pytest.raises(Deposed):
                await reader._settle(world.shared, Deposed("a newer reader"))
            with pytest.raises(ZeroDivisionError):
                await reader._settle(world.shared, ZeroDivisionError("ours"))
            await reader._settle(world.shared, PublicationMissing("gone"))
            assert reader._breach is not None
            await store.grant(reader._office._office, candidate(2), EPOCH + 1)
            with pytest.raises(Deposed):
                await reader._settle(world.shared, OSError("the connection broke"))
        await store.close()

    asyncio.run(main())


def candidate(number: int) -> Candidate:
    return Candidate(number, "127.0.0.1:1", ProcessIdentity("boot", number, 1))


def reader_of(world: World, tmp_path: Path, store: object) -> SourceReader:
    return SourceReader(
        SourceSpec(name=SOURCE, url="postgresql://nobody@127.0.0.1:1/none"), epoch=EPOCH, store=store,  # type: ignore[arg-type]
        candidate=candidate(1), client=world.client, bootstrap=(), spool_dir=str(tmp_path), ports=real_ports())
