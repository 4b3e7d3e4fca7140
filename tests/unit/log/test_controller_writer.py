"""The controller's writer and codec: chunks, failures, bytes that are not records [L18, L19]."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core.cluster import ClusterState
from millrace.core.decision import Decision
from millrace.errors import Damaged, Deposed, NewerFormat, NotController, Refused, StoreUnreachable
from millrace.log.controller.codec import decode_record, decode_snapshot, encode_record, encode_snapshot
from millrace.log.controller.history import History
from millrace.log.controller.stats import ControllerStats
from millrace.log.controller.writer import OFFICE, Writer
from millrace.model.records import VERSION, ProducerIdsGranted, TopicCreated
from millrace.ops.real import real_ports
from millrace.store.contract import Candidate
from millrace_sim.store import MemoryStore, MemoryStoreState
from support_control import Control


class Scene:
    """A writer on a store in memory, under a valid token."""

    def __init__(self) -> None:
        self.ports = real_ports()
        self.shared = MemoryStoreState(latency_min_s=0.0, latency_max_s=0.0)
        self.store = MemoryStore(self.shared, self.ports, host="me")
        self.stats = ControllerStats()

    async def writer(self, *, snapshot_every_records: int = 10**6) -> Writer:
        token = await self.store.acquire(OFFICE, Candidate(1, "h:1", self.ports.processes.me()), 60.0)
        return Writer(
            self.store, self.ports, token, ClusterState(), History(0), self.stats,
            snapshot_every_records=snapshot_every_records, snapshot_index=0,
        )


def play(story: Callable[[Scene, Writer], Awaitable[None]], **how: int) -> Scene:
    scene = Scene()

    async def main() -> None:
        await story(scene, await scene.writer(**how))

    asyncio.run(main())
    return scene


def grants(count: int, first: int = 0) -> Decision[str]:
    return Decision(tuple(ProducerIdsGranted(1, first + n, 1) for n in range(count)), "done")


async def written(writer: Writer, decision: Decision[str]) -> str:
    """One decision through a running writer; raises what ended the writer, if anything did."""
    running = asyncio.create_task(writer.run())
    reply = await writer.submit(lambda: decision)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return reply


def test_L18_a_large_decision_is_written_in_chunks_in_its_order() -> None:
    async def story(scene: Scene, writer: Writer) -> None:
        count = 2 * limits.RECORDS_PER_APPEND_MAX + 3
        assert await written(writer, grants(count)) == "done"
        assert writer.state.index == writer.history.end == count
        assert [decode_record(data) for _, data in scene.shared.history(OFFICE)] == list(grants(count).records)
        assert scene.stats.appends == 3

    play(story)


def test_L18_chunks_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORE_APPEND_BYTES_MAX", 4096)

    async def story(scene: Scene, writer: Writer) -> None:
        wide = tuple(TopicCreated(UUID(int=n), f"{n:04}" + "x" * 200, {}) for n in range(50))
        await written(writer, Decision(wide, ""))
        assert len(writer.state.topics) == 50
        assert scene.stats.appends > 1

    play(story)


def test_L18_a_refused_or_failing_decision_does_not_stop_the_others() -> None:
    async def story(scene: Scene, writer: Writer) -> None:
        def refuse() -> Decision[str]:
            raise Refused("no")

        def mistake() -> Decision[str]:
            raise ZeroDivisionError

        running = asyncio.create_task(writer.run())
        answers = await asyncio.gather(
            writer.submit(refuse), writer.submit(mistake), writer.submit(lambda: grants(1)), return_exceptions=True
        )
        assert [type(a) for a in answers] == [Refused, ZeroDivisionError, str]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(story)


@pytest.mark.parametrize("independent", [True, False])
def test_L8_every_decision_sees_all_records_written_before_it(independent: bool) -> None:
    async def story(scene: Scene, writer: Writer) -> None:
        def next_block() -> Decision[str]:
            first = writer.state.next_producer_id
            return Decision((ProducerIdsGranted(1, first, 10),), str(first))

        running = asyncio.create_task(writer.run())
        answers = await asyncio.gather(*(writer.submit(next_block, independent=independent) for _ in range(4)))
        # Only those that call themselves independent may share a state, and then it is their own word.
        assert answers == (["0"] * 4 if independent else ["0", "10", "20", "30"])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(story)


def test_L18_a_deposed_writer_ends_and_everyone_is_told() -> None:
    async def story(scene: Scene, writer: Writer) -> None:
        running = asyncio.create_task(writer.run())
        await scene.store.acquire(OFFICE, Candidate(1, "h:1", scene.ports.processes.me()), 60.0)
        asks = [asyncio.create_task(writer.submit(lambda: grants(1))) for _ in range(3)]
        with pytest.raises(Deposed):
            await running
        writer.end()
        assert all(isinstance(a, NotController) for a in await asyncio.gather(*asks, return_exceptions=True))
        with pytest.raises(NotController):
            await writer.submit(lambda: grants(1))
        assert writer.state.index == 0

    play(story)


def test_L18_a_snapshot_that_cannot_be_saved_is_put_off() -> None:
    class Unwilling(MemoryStore):
        tries = 0

        async def save_snapshot(self, office: str, token: int, index: int, blob: bytes) -> None:
            Unwilling.tries += 1
            raise StoreUnreachable("not now")

    async def story(scene: Scene, writer: Writer) -> None:
        writer._store = Unwilling(scene.shared, scene.ports)
        await written(writer, grants(10))
        await written(writer, grants(5, first=10))
        assert Unwilling.tries == 1
        assert writer.history.start == 0, "nothing is forgotten that no snapshot holds"
        await written(writer, grants(5, first=15))
        assert Unwilling.tries == 2

    play(story, snapshot_every_records=10)


# -- codec -------------------------------------------------------------------------------------------------------------
def test_L19_records_and_snapshots_survive_the_codec() -> None:
    c = Control().up(1, 2, 3)
    c.topic("t", partitions=3, max_message_bytes="1000")
    c.fence(2)
    assert [decode_record(encode_record(record)) for record in c.written] == c.written
    assert decode_snapshot(encode_snapshot(c.state.to_records())) == c.state.to_records()


@pytest.mark.parametrize("decode", [decode_record, decode_snapshot])
def test_L19_a_newer_format_is_refused_with_a_clear_line(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(NewerFormat, match=f"format {VERSION + 1}, this millrace reads up to {VERSION}"):
        decode(bytes([VERSION + 1]) + b"whatever")


@given(data=st.binary(max_size=80), known=st.booleans())
def test_L10_bytes_that_are_no_records_are_damage(data: bytes, known: bool) -> None:
    for decode in (decode_record, decode_snapshot):
        try:
            decode(bytes([VERSION]) + data if known else data)
        except Damaged:
            continue


def test_L10_a_cut_record_is_damage() -> None:
    whole = encode_record(ProducerIdsGranted(1, 2, 3))
    for size in range(len(whole)):
        with pytest.raises(Damaged):
            decode_record(whole[:size])
