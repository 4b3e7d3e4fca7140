"""A source's `progress` as dispatchers follow it, on one real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import limits
from millrace.changefeed.dispatching.progress import SourceProgress
from millrace.core.delivery.source_marks import Look, Marker
from millrace.core.sources.registry import table_topic
from millrace.errors import DataLost
from millrace.model.progress import Change
from millrace.model.spans import TablePartition
from millrace.model.tables import Place
from support_homes import SOURCE, Log, id_of, run, table

T, WIDER = table(16400, "t"), table(16400, "t", "x")
PART = TablePartition(id_of(T.oid), 0)
BATCHES, ROWS = 12, limits.MARKER_LOOK_BYTES // 12 // 32        # more than a look reads at a time


async def _filled(log: Log) -> Marker:
    """The marker of one change, with more than a page before and behind it."""
    await log.add(T)
    for lsn in range(10, 10 + BATCHES):
        await log.rows(T.oid, 0, ROWS, lsn=lsn)
    number = await log.change(Change(1, T.oid, 30, 0, "alter", WIDER.id, T.id, "ALTER TABLE t"), WIDER)
    for lsn in range(40, 40 + BATCHES):
        await log.rows(T.oid, 0, ROWS, lsn=lsn)
    await log.mark(60)
    return Marker(number, 1, Place(30, 0))


def test_C7_a_marker_is_found_behind_more_than_is_read_at_a_time(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        marker = await _filled(log)
        progress = SourceProgress(log.client, SOURCE, lambda tables: None)
        await progress.ready()
        look, at = Look(T.oid, 0, marker, 0, log.ends[T.oid, 0]), BATCHES * ROWS
        await progress.find(PART, look)
        assert progress.found(PART) == {marker: at}
        with pytest.raises(DataLost):
            await progress.find(PART, look._replace(start=at + 1))
        await progress.close()

    run(tmp_path, story)


def test_P7_a_page_has_no_more_than_was_asked_for(tmp_path: Path) -> None:
    """All that waits behind a barrier would be read again for each of them."""
    async def story(log: Log) -> None:
        await _filled(log)
        topic, end = table_topic(SOURCE, T.oid), log.ends[T.oid, 0]
        pages = [len(page) async for page in log.client.read(topic, 0, 0, end, bytes_max=1)]
        assert pages == [*[ROWS] * BATCHES, 1, *[ROWS] * BATCHES]
        assert [len(page) async for page in log.client.read(topic, 0, 0, end)] == [end]

    run(tmp_path, story)
