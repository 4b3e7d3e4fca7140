from __future__ import annotations

import pytest

from millrace.errors import Malformed, NewerFormat
from millrace.model import changefeeds as nouns
from millrace.model import sources
from millrace.model.spans import Place, Span, TableId, merge, split, whole

T = TableId("shop", 7)
SPEC = nouns.ChangefeedSpec(
    id="orders", source="shop", sink="kafka:?format=json", tables=("public.*",),
    settings=(nouns.TableSettings(tables="public.orders", filter="total > 0", topic="o"),), options={"a": "b"})
ERROR = nouns.FeedError(code="sink_denied", kind="fail", table=T, span=3, capture=1, first_ms=1, last_ms=2, count=4)

COORDINATOR = [
    nouns.ChangefeedCreated(SPEC, 5, paused=True), nouns.ChangefeedChanged(SPEC), nouns.ChangefeedPaused("orders"),
    nouns.ChangefeedResumed("orders", 99, 2), nouns.ChangefeedFailed("orders", ERROR),
    nouns.ChangefeedFinished("orders"), nouns.ChangefeedRemoving("orders"), nouns.ChangefeedRemoved("orders"),
    nouns.MaintainerPlaced("orders", Place(1, 2, 3)), sources.ReaderPlaced("shop", 1, 2, 3),
]
OFFICE = [
    nouns.EpochsTaken(9), nouns.SpanRecorded(0, whole(T, 3), 4), nouns.FeedBegun(), nouns.SpanPlaced(0, Place(1, 2, 3)),
    nouns.SpansReplaced((0,), ((1, Span(T, (0,))), (2, Span(T, (1, 2))))), nouns.SpanEnded(1), nouns.TableEnds(T, 8),
    nouns.SpecSettled(SPEC), nouns.SpecSettled(None), nouns.FeedRewound(2, 99), nouns.CheckpointReached(77),
    nouns.TableTrouble(T, ERROR), nouns.TableTrouble(T, None),
]


@pytest.mark.parametrize("record", COORDINATOR, ids=lambda r: type(r).__name__)
def test_C1_records_of_the_coordinator_survive_their_bytes(record: nouns.CoordinatorRecords) -> None:
    assert nouns.decode_coordinator(nouns.encode_record(record)) == record


@pytest.mark.parametrize("record", OFFICE, ids=lambda r: type(r).__name__)
def test_C2_records_of_a_changefeed_survive_their_bytes(record: nouns.FeedRecords) -> None:
    assert nouns.decode_feed(nouns.encode_record(record)) == record


def test_C1_the_coordinator_reads_what_was_written_about_sources() -> None:
    record = sources.SourceRemoved("shop")
    assert nouns.decode_coordinator(sources.encode_record(record)) == record


def test_C8_the_ddl_position_survives_its_bytes_and_knows_isolated_tables() -> None:
    position = nouns.DdlPosition(4, 10, ((T, 6),))
    assert nouns.decode_ddl_position(nouns.encode_record(position)) == position
    assert position.of(T) == 6
    assert position.of(TableId("shop", 8)) == 10


@pytest.mark.parametrize("data", [b"", b"\x01\xc1", b"\x01" + b"\x80"])
def test_a_record_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        nouns.decode_feed(data)


def test_L19_a_newer_record_is_refused() -> None:
    with pytest.raises(NewerFormat, match="version 2"):
        nouns.decode_feed(b"\x02\x80")


def test_C4_split_and_merge_work_on_whole_partitions() -> None:
    span = whole(T, 3)
    assert split(span) == (Span(T, (0,)), Span(T, (1,)), Span(T, (2,)))
    assert merge(split(span)) == span
    with pytest.raises(AssertionError):
        merge([span, whole(TableId("shop", 8), 1)])
