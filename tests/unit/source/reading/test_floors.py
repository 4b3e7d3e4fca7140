"""Floors of a source's reader on a real broker: the last mark's ends, and all of `progress` [F10, S3]."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.core.feeds.floors import source_owner
from millrace.core.sources.registry import kept_configs, progress_topic
from millrace.errors import Superseded
from millrace.log.client.floors import FloorClient
from millrace.model.ids import TopicPartition
from millrace.model.sources import SourceSpec
from millrace.source.reading.floors import ReaderFloors
from support_homes import SOURCE, Log, run, table

T, U = table(16400, "t"), table(16401, "u")


def test_F10_a_reader_holds_what_its_successor_scans_and_a_former_one_moves_nothing(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        for one in (T, U):
            await log.add(one)
            await log.rows(one.oid, 0, 9, lsn=10)
        floors = FloorClient(log.client)
        progress = TopicPartition((await log.client.topic(progress_topic(SOURCE))).id, 0)
        t, u = (TopicPartition(log.ids[one.oid], 0) for one in (T, U))
        reader = ReaderFloors(log.client, SOURCE, 4)
        await reader.move(None)
        assert (await floors.of_owner(source_owner(SOURCE))).held == {progress: 0}, "before the first mark"
        await reader.move({(T.oid, 0): 3, (U.oid, 0): 2, (99, 0): 1})
        assert (await floors.of_owner(source_owner(SOURCE))).held == {progress: 0, t: 3, u: 2}
        for _ in range(2):
            await reader.move({(T.oid, 0): 5})               # the other table was dropped
        assert (await floors.of_owner(source_owner(SOURCE))).held == {progress: 0, t: 5}
        for _ in range(3):
            await reader.move(None)                          # a generation begins: its first mark does not stand yet
        assert (await floors.of_owner(source_owner(SOURCE))).held == {progress: 0, t: 5}, "a start now scans from there"
        await ReaderFloors(log.client, SOURCE, 5).move({(T.oid, 0): 5})
        assert (await floors.of_owner(source_owner(SOURCE))).epoch == 5
        with pytest.raises(Superseded):
            await reader.move({(T.oid, 0): 9})
        assert (await floors.of_owner(source_owner(SOURCE))).held[t] == 5

    run(tmp_path, story)


def test_F10_what_a_source_keeps_is_what_its_tables_topics_keep() -> None:
    said = SourceSpec(name="shop", url="postgresql://db")
    assert kept_configs(said, is_copy=False) == {"retention.ms": "-1", "retention.bytes": "-1"}
    said = SourceSpec(name="shop", url="postgresql://db", keep_s=60, keep_bytes=1000)
    assert kept_configs(said, is_copy=False) == {"retention.ms": "60000", "retention.bytes": "1000"}
    assert kept_configs(said, is_copy=True) == {"retention.ms": "60000", "retention.bytes": "-1"}, "whole, or not"
