"""Copies as they replay: attempts, proofs, lost snapshots, what to run next [S4, S5]."""

from __future__ import annotations

from typing import TypeVar

import pytest

from millrace.core.decision import SourceDecision
from millrace.core.sources.copies import Attempt, ChunkId, Copies, Figures
from millrace.errors import InvalidRequest
from millrace.limits import COPY_PACK_BYTES
from millrace.model.sources import ChunkSpan, SnapshotLost, decode_source, encode_record

T = TypeVar("T")
THREE = tuple(ChunkSpan(relation=10, from_block=b, to_block=b + 100) for b in (0, 100, 200))


def write(copies: Copies, decision: SourceDecision[T]) -> T:
    for record in decision.records:
        copies.replay(decode_source(encode_record(record)))
    return decision.reply


def planned(kind: str = "snapshot", *, generation: int = 1, copies: Copies | None = None) -> tuple[Copies, int]:
    copies = copies or Copies()
    number = write(copies, copies.plan(
        generation=generation, oid=10, topic="t", partitions=2, kind=kind, at=50 if kind == "snapshot" else 0,  # type: ignore[arg-type]
        chunks=THREE,
    ))
    return copies, number


def test_S4_a_copy_is_done_when_every_chunk_is() -> None:
    copies, copy = planned()
    for chunk in range(3):
        assert not copies.is_done(1)
        attempt = write(copies, copies.attempt(copy, chunk))
        assert write(copies, copies.manifest_acked(attempt, rows=10, bytes_=1000))
    assert copies.is_done(1)
    assert copies.figures(copy) == Figures(chunks=3, chunks_done=3, rows=30, bytes=3000, chunk_bytes=1000)


def test_S4_attempt_numbers_are_never_used_twice() -> None:
    copies, copy = planned()
    assert [write(copies, copies.attempt(copy, 1)).attempt for _ in range(3)] == [1, 2, 3]


def test_S4_a_second_attempt_that_ends_after_the_first_changes_nothing() -> None:
    copies, copy = planned()
    one, two = write(copies, copies.attempt(copy, 0)), write(copies, copies.attempt(copy, 0))
    write(copies, copies.manifest_acked(two, rows=7, bytes_=70))
    decision = copies.manifest_acked(one, rows=9, bytes_=90)
    assert (decision.records, decision.reply) == ((), True)
    assert copies.figures(copy).rows == 7


def test_S4_chunks_of_a_lost_snapshot_become_watermark_chunks() -> None:
    copies, copy = planned()
    write(copies, copies.manifest_acked(write(copies, copies.attempt(copy, 0)), rows=1, bytes_=1))
    assert copies.by_id[copy].needs_snapshot
    assert write(copies, copies.snapshot_lost(1)) == (SnapshotLost(copy, (1, 2)),)
    assert [chunk.kind for chunk in copies.by_id[copy].chunks] == ["snapshot", "watermark", "watermark"]
    assert copies.abandoned(1) == {copy: (1, 2)}
    assert not copies.by_id[copy].needs_snapshot
    assert copies.snapshot_lost(1).records == ()


def test_S4_a_manifest_of_a_lost_snapshot_does_not_count() -> None:
    copies, copy = planned()
    late = write(copies, copies.attempt(copy, 1))
    write(copies, copies.snapshot_lost(1))
    decision = copies.manifest_acked(late, rows=1, bytes_=1)
    assert (decision.records, decision.reply) == ((), False)
    assert copies.high_mark_found(late, rows=1, bytes_=1).records == ()


def test_S5_a_watermark_chunk_is_done_by_its_high_mark_in_progress() -> None:
    copies, copy = planned("watermark")
    attempt = write(copies, copies.attempt(copy, 0))
    assert not copies.manifest_acked(attempt, rows=5, bytes_=5).reply
    assert write(copies, copies.high_mark_found(attempt, rows=5, bytes_=5))
    assert copies.by_id[copy].chunks[0].done_by == 1


def test_S5_a_new_timeline_or_generation_voids_attempts_under_way() -> None:
    copies, copy = planned("watermark")
    assert copies.voided(copy, "watermark", generation=1, started_on=1, timeline=1) == ""
    assert "timeline" in copies.voided(copy, "watermark", generation=1, started_on=1, timeline=2)
    assert "generation" in copies.voided(copy, "snapshot", generation=2, started_on=1, timeline=1)
    assert copies.voided(copy, "snapshot", generation=1, started_on=1, timeline=2) == ""


def test_S4_what_to_run_next_stays_within_the_limit_and_begins_with_snapshots() -> None:
    copies, first = planned("watermark")
    _, second = planned("snapshot", copies=copies)
    running = {ChunkId(second, 0)}
    tasks = copies.next_tasks(1, running=running, limit=4)
    assert [(task.copy, task.chunk) for task in tasks] == [(second, 1), (second, 2), (first, 0)]
    assert tasks[0].span == THREE[1]
    assert copies.next_tasks(1, running={ChunkId(9, n) for n in range(5)}, limit=4) == []


def test_S9_copies_of_an_earlier_generation_are_over() -> None:
    copies, _ = planned()
    _, second = planned(generation=2, copies=copies)
    assert {task.copy for task in copies.next_tasks(2, running=(), limit=99)} == {second}
    assert copies.is_done(3)


def test_S4_a_copy_says_what_progress_must_know() -> None:
    copies, copy = planned()
    said = copies.by_id[copy].started()
    assert (said.generation, said.copy, said.oid, said.chunks, said.at, said.kind) == (1, copy, 10, 3, 50, "snapshot")
    assert said.whole


def test_S5_a_copy_of_single_keys_is_not_whole() -> None:
    copies = Copies()
    chunks = tuple(ChunkSpan(10, low_key=(k,), high_key=(k,), by_key=True) for k in ("1", "7"))
    copy = write(copies, copies.plan(
        generation=1, oid=10, topic="t", partitions=1, kind="watermark", at=0, chunks=chunks, feeds=("lake",),
    ))
    assert not copies.by_id[copy].started().whole


def test_S5_one_chunk_open_on_both_sides_is_the_whole_table() -> None:
    copies = Copies()
    copy = write(copies, copies.plan(
        generation=1, oid=10, topic="t", partitions=1, kind="watermark", at=0, chunks=(ChunkSpan(10, by_key=True),),
    ))
    assert copies.by_id[copy].started().whole


def test_S4_plans_that_make_no_sense_are_refused() -> None:
    copies, copy = planned()
    with pytest.raises(InvalidRequest, match="without chunks"):
        copies.plan(generation=1, oid=1, topic="t", partitions=1, kind="watermark", at=0, chunks=())
    with pytest.raises(InvalidRequest, match="planned already"):
        copies.plan(generation=1, oid=1, topic="t", partitions=1, kind="watermark", at=0, chunks=THREE, copy=copy)


def test_S4_time_left_follows_the_pace_of_this_run() -> None:
    figures = Figures(chunks=10, chunks_done=4, rows=0, bytes=0)
    assert figures.share == pytest.approx(0.4)
    assert figures.remaining_s(30.0, chunks_done_before=1) == pytest.approx(60.0)
    assert figures.remaining_s(30.0, chunks_done_before=4) is None
    assert Figures(2, 2, 0, 0).remaining_s(5.0) == 0.0


def test_S4_what_was_read_of_chunks_under_way_counts_too() -> None:
    figures = Figures(chunks=10, chunks_done=4, rows=0, bytes=4000, chunk_bytes=1000).with_running([500, 250])
    assert figures.share == pytest.approx(0.475)
    assert figures.remaining_s(30.0, chunks_done_before=4) == pytest.approx(30 / 0.75 * 5.25)
    assert Figures(1, 0, 0, 0, 1000).with_running([1 << 40]).share == pytest.approx(0.95), "larger than thought"
    assert Figures(10, 4, 0, 0).with_running([500]).share == pytest.approx(0.4), "nothing tells what a chunk comes to"


def test_S4_the_size_of_a_chunk_is_that_of_those_done_or_of_the_copy_before() -> None:
    copies, first = planned()
    assert copies.figures(first).chunk_bytes == 0
    for chunk in range(3):
        write(copies, copies.manifest_acked(Attempt(first, chunk, 1), rows=1, bytes_=600))
    one = (ChunkSpan(10, by_key=True),)
    again = write(copies, copies.plan(
        generation=1, oid=10, topic="t", partitions=1, kind="watermark", at=0, chunks=one))
    keys = (ChunkSpan(10, low_key=("1",), high_key=("1",), by_key=True),)
    single = write(copies, copies.plan(
        generation=1, oid=10, topic="t", partitions=1, kind="watermark", at=0, chunks=keys))
    other = write(copies, copies.plan(
        generation=1, oid=11, topic="t", partitions=1, kind="watermark", at=0, chunks=one))
    assert [copies.figures(copy).chunk_bytes for copy in (first, again, single, other)] == [600, 1800, 0, 0]
    assert copies.figures(again).with_running([900]).share == pytest.approx(0.5)


def test_S4_state_is_what_replaying_gives() -> None:
    copies, copy = planned()
    attempt = write(copies, copies.attempt(copy, 0))
    assert attempt == Attempt(copy, 0, 1)
    write(copies, copies.snapshot_lost(1))
    assert write(copies, copies.attempt(copy, 0)).attempt == 2
    assert copies.next_id == copy + 1


def test_S4_small_tables_do_not_wait_until_a_large_one_is_copied() -> None:
    copies = Copies()
    large = tuple(ChunkSpan(10, n, n + 1, bytes=COPY_PACK_BYTES) for n in range(3))
    unknown, small = (ChunkSpan(11),), (ChunkSpan(12, bytes=8192),)
    for spans in (large, unknown, small, small):
        plan = copies.plan(generation=1, oid=10, topic="t", partitions=1, kind="snapshot", at=7, chunks=spans)
        for record in plan.records:
            copies.replay(record)
    tasks = copies.next_tasks(1, running=(), limit=99)
    assert [(task.copy, task.chunk) for task in tasks] == [(3, 0), (4, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
