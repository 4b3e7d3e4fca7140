"""Filters and projections of single tables, moved in rounds on a real Spark [P4, P9]."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

import support_json as judge
from millrace import limits
from millrace.log.client import LogClient
from millrace.model.changefeeds import TableSettings
from millrace.model.positions import Point
from millrace.model.progress import SchemaVersion
from millrace.model.quarantine import decode_quarantined, quarantine_topic
from millrace.model.rounds import TaskPlan
from millrace.model.tables import Column, TableSchema
from millrace.pipeline.rounds import Ending, Returned, Runner
from millrace.pipeline.session import Place, Session
from millrace.wire.records import Record
from support_cluster import Cluster
from support_data_path import Capture, Shop, until
from support_mover import TABLE, Message, insert
from support_secret import LOG_KEY
from support_spark import SparkServer

pytestmark = pytest.mark.timeout(400)      # a JVM starts, perhaps on a busy machine
FULL = msgspec.structs.replace(TABLE, identity="f")
SINK = "kafka:?format=json&partitions=2"


class Counting:
    """Spark's jobs, with their plans."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self.shape = runner, runner.shape
        self.plans: list[TaskPlan] = []
        self.errors: list[str] = []

    async def run(self, plans: Any) -> Ending:
        self.plans += plans
        ending = await self._runner.run(plans)
        if isinstance(ending, Returned):
            self.errors += [one.result.error for one in ending.results if one.result.error]
        return ending


Story = Callable[[Shop, Counting, Callable[..., Capture]], Awaitable[None]]


def play(server: SparkServer, log: Cluster, source: str, story: Story) -> None:
    async def body() -> None:
        bootstrap = tuple(log.bootstrap.split(","))
        runner, captures = Runner(Session(Place(remote=server.remote))), list[Capture]()
        async with LogClient(bootstrap, key=LOG_KEY) as client:
            shop, jobs = Shop(client, source), Counting(runner)
            await shop.make(replication_factor=1)

            def capture(feed: str = "orders", **said: Any) -> Capture:
                settings = (TableSettings(tables="public.*", **said),) if said else ()
                captures.append(Capture(client, bootstrap, jobs, source, sink=SINK, feed=feed, settings=settings,
                                        capture=len(captures) + 1, deadline_s=20.0))
                return captures[-1]

            try:
                await story(shop, jobs, capture)
            finally:
                for one in captures:
                    await one.close()
                await runner.close()

    asyncio.run(body())


async def stand(shop: Shop, capture: Capture, offset: int) -> None:
    await shop.mark()

    async def it_does() -> bool:
        capture.place_again()
        return await shop.at(0) == Point(offset, 0)

    await until(it_does, f"the position at {offset}", timeout_s=120.0)


async def records(shop: Shop, topic: str) -> list[Record]:
    found: list[Record] = []
    for partition in range(len((await shop.client.topic(topic)).partitions)):
        start, end = await shop.client.ends(topic, partition)
        found += [record async for page in shop.client.read(topic, partition, start, end) for record in page]
    return found


def change(op: int, n: int, after: str | None, before: str | None) -> judge.Row:
    def image(text: str | None) -> list[judge.Cell]:
        return [judge.Cell(n), judge.NULL if text is None else judge.Cell(text)]

    return judge.Row(op, [] if op == 2 else image(after), image(before) if op else None, lsn=n, commit_lsn=n, xid=1)


def test_P4_updates_enter_and_leave_a_filter_and_versions_follow_each_other(
    spark_server: SparkServer, log: Cluster
) -> None:
    """Of a table that is wider from some row on: both versions are in one round, and judged by plans of their own."""
    wider = msgspec.structs.replace(FULL, columns=(*FULL.columns, Column("more", 25)))

    async def story(shop: Shop, jobs: Counting, capture: Callable[..., Capture]) -> None:
        await shop.progress(SchemaVersion(1, FULL, 2, 0))
        await shop.rows(0, [
            change(0, 1, "in", None), change(0, 2, "out", None), change(1, 3, "in", "in"), change(1, 4, "in", "out"),
            change(1, 5, "out", "in"), change(1, 6, "out", "out"), change(2, 7, None, "in"),
            change(2, 8, None, "out")], FULL)
        await shop.progress(SchemaVersion(1, wider, shop.lsn + 1, 0))
        row = change(0, 9, "in", None)
        row.after.append(judge.Cell("more"))
        await shop.rows(0, [row], wider)
        here = capture(filter="x = 'in'", projection=("id AS no", "concat(x, '!') AS loud"))
        here.start(2, (0,))
        await stand(shop, here, 2)
        told = [json.loads(record.value or b"") for record in await records(shop, shop.target)]
        assert sorted((one["no"], one["_change_type"], one.get("loud")) for one in told) == [
            (1, "insert", "in!"), (3, "update_postimage", "in!"), (4, "insert", "in!"), (5, "delete", "in!"),
            (7, "delete", "in!"), (9, "insert", "in!")]
        assert max(len(plan.tables) for plan in jobs.plans) == 3, "what stood before the first mark is a version, too"
        assert jobs.errors == []

    play(spark_server, log, "crossing", story)


def test_P4_both_paths_give_the_same_messages_through_rounds_on_spark(spark_server: SparkServer, log: Cluster) -> None:
    """The same rows without settings, and under a filter that takes them all."""
    found: list[list[tuple[Point, bytes | None, bytes | None]]] = []
    paths: list[bool] = []

    async def story(shop: Shop, jobs: Counting, capture: Callable[..., Capture]) -> None:
        for n in range(2):
            await shop.rows(0, [insert(10 * n + i) for i in range(10)])
        here = capture(**({"filter": "x IS NULL OR length(x) > 0"} if found else {}))
        here.start(2, (0,))
        await stand(shop, here, 2)
        again = await jobs.run(jobs.plans[-1:])              # as a Connect client that sends a plan twice
        assert isinstance(again, Returned)
        assert [one.unclaimed for one in again.results] == [True], "and nothing is written [P5]"
        paths.append(any(plan.asks for plan in jobs.plans))
        found.append(sorted((Message(one).point, one.key, one.value) for one in await records(shop, shop.target)))

    for source in ("fused", "asked"):
        play(spark_server, log, source, story)
    assert paths == [False, True]
    assert found[0] == found[1]
    assert len(found[0]) == 20


def test_P9_rows_that_break_an_expression_are_quarantined_and_the_rest_goes_on(
    spark_server: SparkServer, log: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FEED_RETRY_MIN_S", 0.1)
    texts = ["1", "nine", "3", "4"]

    async def story(shop: Shop, jobs: Counting, capture: Callable[..., Capture]) -> None:
        await shop.rows(0, [insert(n, text) for n, text in enumerate(texts)])
        here = capture(filter="CAST(x AS INT) > 1")
        here.start(2, (0,))
        await stand(shop, here, 1)
        found = [json.loads(record.value or b"")["id"] for record in await records(shop, shop.target)]
        assert sorted(found) == [n for n, text in enumerate(texts) if text.isdigit() and int(text) > 1]
        kept = [record for record in await records(shop, quarantine_topic("orders"))
                if Message(record).told.provenance.topic_id == (await shop.client.topic(shop.topic)).id.bytes]
        assert [(Message(record).point, json.loads(record.key or b"")) for record in kept] == [(Point(0, 1), {"id": 1})]
        [reason] = [decode_quarantined(record.value or b"").reason for record in kept]
        assert reason.startswith("expression: ")
        assert "'nine'" in reason
        assert jobs.errors
        assert all(error.startswith("expression_broke: an expression breaks with a row") for error in jobs.errors)

    play(spark_server, log, "breaking", story)


def test_P9_C9_a_search_over_many_rounds_finds_every_row_and_isolates_nobody(
    spark_server: SparkServer, log: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of trials a round, as where each of them takes long."""
    monkeypatch.setattr(limits, "FEED_RETRY_MIN_S", 0.1)
    monkeypatch.setattr(limits, "SEARCH_SLICE_S", 0.0)
    bad, rows, said = {17, 200, 201, 390}, 400, set[tuple[str, str]]()

    async def story(shop: Shop, jobs: Counting, capture: Callable[..., Capture]) -> None:
        for n in range(0, rows, 50):
            await shop.rows(0, [insert(i, "none" if i in bad else "2") for i in range(n, n + 50)])
        await shop.mark()
        here = capture(filter="CAST(x AS INT) > 1")
        here.start(2, (0,))

        async def it_is_over() -> bool:
            here.place_again()
            held = here.host.machine.held.get(0)
            if held is not None and held.error is not None:
                said.add((held.error.code, held.error.kind))
            return await shop.at(0) == Point(rows // 50, 0)

        await until(it_is_over, "the position at the end", timeout_s=200.0)
        found = [json.loads(record.value or b"")["id"] for record in await records(shop, shop.target)]
        assert sorted(found) == [n for n in range(rows) if n not in bad]
        kept = [json.loads(record.key or b"")["id"] for record in await records(shop, quarantine_topic("orders"))
                if Message(record).told.provenance.topic_id == (await shop.client.topic(shop.topic)).id.bytes]
        assert kept == sorted(bad)
        assert said <= {("expression_search", "retry"), ("expression_broke", "restart")}
        assert ("expression_search", "retry") in said
        assert len([error for error in jobs.errors if error.startswith("expression_broke")]) == 1, "lost once"

    play(spark_server, log, "searching", story)


def test_P4_C8_an_expression_that_breaks_with_too_many_rows_is_the_tables_trouble(
    spark_server: SparkServer, log: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FEED_RETRY_MIN_S", 0.1)
    monkeypatch.setattr(limits, "CULPRITS_MAX", 1)

    async def story(shop: Shop, jobs: Counting, capture: Callable[..., Capture]) -> None:
        await shop.rows(0, [insert(n, "none") for n in range(2)])
        await shop.mark()
        here = capture(filter="CAST(x AS INT) > 1")
        here.start(2, (0,))

        def error() -> str:
            here.place_again()
            held = here.host.machine.held.get(0)
            return held.error.message if held is not None and held.error is not None else ""

        await until(lambda: "more than 1 rows" in error(), "the error", timeout_s=120.0)
        assert error().startswith("table_refused: public.t: an expression breaks with more than 1 rows of one round")
        assert await shop.at(0) == Point(0, 0)

    play(spark_server, log, "hopeless", story)


def test_P4_what_spark_says_of_a_version_is_asked_once_and_refused_with_the_place(
    spark_server: SparkServer, log: Cluster
) -> None:
    other = TableSchema(TABLE.oid, "public", "t", "d", (TABLE.columns[0], Column("z", 25)))

    async def story(shop: Shop, jobs: Counting, capture: Callable[..., Capture]) -> None:
        await shop.progress(SchemaVersion(1, other, 2, 0))
        here = capture(filter="length(x) > 0")
        here.start(2, (0,))

        def error() -> str:
            here.place_again()
            held = here.host.machine.held.get(0)
            return held.error.message if held is not None and held.error is not None else ""

        await until(lambda: bool(error()), "the error", timeout_s=60.0)
        assert "public.t, settings[0].filter: " in error()
        assert "`x` is no column of public.t; it has id, z" in error()
        assert jobs.plans == []

    play(spark_server, log, "unfit", story)
