"""Truncations in a changefeed's topics: data of their own, in every partition, whatever the sink says of schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.core.feeds.feeds import FeedEntry
from millrace.model.progress import Change, CopyStarted
from millrace.model.tables import Column
from support_feeds import until
from support_homes import SPEC, Log, homes, id_of, run, table
from support_homes import entry as support_entry

A, B = table(16401, "a"), table(16402, "b")


def entry(sink: str) -> FeedEntry:
    return support_entry(msgspec.structs.replace(SPEC, sink=sink))


async def told(log: Log, topic: str, partitions: int) -> list[list[dict[str, Any]]]:
    return [[json.loads(value) for _, value in await log.messages(topic, p)] for p in range(partitions)]


@pytest.mark.parametrize("ddl", ["true", "false"])
def test_A3_S12_a_truncation_stands_in_every_partition_whatever_ddl_says(tmp_path: Path, ddl: str) -> None:
    async def story(log: Log) -> None:
        await log.add(A)
        number = await log.change(Change(1, A.oid, 20, 0, "truncate", A.id))
        home = await homes(log).open(entry(f"kafka:?format=debezium-json&partitions=3&ddl={ddl}"))
        await home.take_ddl(5)
        assert await home.write_change(5, id_of(A.oid), number)
        assert await home.write_change(5, id_of(A.oid), number)              # it stands: nothing is written
        found = await told(log, "shop.public.a", 3)
        assert [[one["op"] for one in partition] for partition in found] == [["t"]] * 3
        await home.leave()

    run(tmp_path, story)


def test_S12_K3_whoever_takes_over_writes_only_the_letters_that_miss(tmp_path: Path) -> None:
    sink = "kafka:?format=json&ddl=true&partitions=3"

    async def story(log: Log) -> None:
        await log.add(A)
        number = await log.change(Change(1, A.oid, 20, 0, "drop", None, A.id))
        former = await homes(log).open(entry(sink))
        await former.take_ddl(5)
        send, sent = former._hand._send, 0                                  # type: ignore[attr-defined]

        async def some(*args: Any) -> int:
            nonlocal sent
            sent += 1
            if sent == 3:
                raise ConnectionError("gone")
            return int(await send(*args))

        former._hand._send = some                                           # type: ignore[attr-defined]
        with pytest.raises(ConnectionError):
            await former.write_change(5, id_of(A.oid), number)
        home = await homes(log).open(entry(sink))
        await home.take_ddl(6)
        assert await home.write_change(6, id_of(A.oid), number)
        found = await told(log, "shop.public.a", 3)
        assert [[one["_change_type"] for one in partition] for partition in found] == [
            ["drop", "truncate"], ["truncate"], ["truncate"]]
        await former.leave()
        await home.leave()

    run(tmp_path, story)


def test_A4_S12_a_table_that_is_renamed_leaves_no_rows_under_its_name(tmp_path: Path) -> None:
    renamed = msgspec.structs.replace(A, name="c")

    async def story(log: Log) -> None:
        await log.add(A)
        number = await log.change(Change(1, A.oid, 20, 0, "alter", renamed.id, A.id), renamed)
        home = await homes(log).open(entry("kafka:?format=json&ddl=false"))
        await home.take_ddl(5)
        assert await home.write_change(5, id_of(A.oid), number)
        [[one]] = await told(log, "shop.public.a", 1)
        assert (one["_change_type"], one["_table"]) == ("truncate", "a")
        await home.leave()

    run(tmp_path, story)


def test_A4_S12_after_a_swap_no_truncation_of_a_former_name_meets_the_table_that_has_it_now(tmp_path: Path) -> None:
    a_now, b_now = msgspec.structs.replace(A, name="b"), msgspec.structs.replace(B, name="a")

    async def story(log: Log) -> None:
        await log.add(A)
        await log.add(B)
        await log.change(Change(1, A.oid, 20, 0, "alter", a_now.id, A.id), a_now)
        second = await log.change(Change(1, B.oid, 20, 0, "alter", b_now.id, B.id), b_now)
        home = await homes(log).open(entry("kafka:?format=json&ddl=false"))
        await home.take_ddl(5)
        assert await home.write_change(5, id_of(B.oid), second)             # `b` is the other table's by now
        await log.client.create_topic("shop.public.b", partitions=1)
        assert await told(log, "shop.public.b", 1) == [[]]
        await home.leave()

    run(tmp_path, story)


def test_A4_S12_the_making_of_a_table_is_shown_behind_the_drop_of_one_of_its_name(tmp_path: Path) -> None:
    again = msgspec.structs.replace(A, oid=16403)

    async def story(log: Log) -> None:
        await log.add(A)
        drop = await log.change(Change(1, A.oid, 30, 4, "drop", None, A.id))
        made = await log.add(again, lsn=10)                                 # in force from what was resolved by then
        home = await homes(log).open(entry("kafka:?format=debezium-json&ddl=inline"))
        await home.take_ddl(5)
        assert await home.write_change(5, id_of(A.oid), drop)
        assert await home.write_change(5, id_of(again.oid), made)
        [found] = await told(log, "shop.public.a", 1)
        sequences = [tuple(map(int, json.loads(one["source"]["sequence"]))) for one in found]
        assert [one.get("op") for one in found] == [None, "t", None]
        assert sequences == sorted(sequences), sequences
        await home.leave()

    run(tmp_path, story)


def test_S12_a_changefeed_that_stops_at_breaks_lets_the_table_out_and_waits_for_a_copy_by_hand(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(SPEC, on_schema_break="stop")

    def copy(number: int, why: str) -> CopyStarted:
        return CopyStarted(1, number, A.oid, f"__millrace.shop.copy.{number}", 1, 0, "watermark", why=why)

    async def story(log: Log) -> None:
        await log.add(A)
        await log.mark(10)
        await log.client.create_topic("__millrace.shop.copy.1", partitions=1)
        await log.tell(copy(1, "renamed before the changefeed was made"))
        home = await homes(log).open(support_entry(spec))
        seen: dict[str, Any] = {"lost": {}, "bases": {}}

        def look() -> None:
            news = home.news()
            seen["lost"] |= news.lost
            seen["bases"] |= news.bases

        look()
        assert seen["lost"] == {}
        await log.change(Change(1, A.oid, 20, 0, "truncate", A.id, text="its key was changed", begins=True))
        await log.client.create_topic("__millrace.shop.copy.2", partitions=1)
        await log.tell(copy(2, "its key was changed"))
        await log.mark(30)
        await until(lambda: (look(), bool(seen["lost"]))[1])
        assert seen["lost"] == {id_of(A.oid): "its key was changed"}
        assert seen["bases"].get(id_of(A.oid)) is None, "not with the copy that the source has made by itself"
        await log.client.create_topic("__millrace.shop.copy.3", partitions=1)
        number = await log.tell(copy(3, ""))
        await until(lambda: (look(), seen["bases"].get(id_of(A.oid)) is not None)[1])
        assert seen["bases"][id_of(A.oid)] == number
        await home.leave()
        again = await homes(log).open(support_entry(spec))
        assert await again.take_ddl(9) is not None
        assert again.news().lost == {}, "a copy by hand has mended it"
        await again.leave()

    run(tmp_path, story)


@pytest.mark.parametrize("schema", ["true", "false"])
def test_K6_schema_changes_have_a_topic_of_their_own_and_truncations_have_not(tmp_path: Path, schema: str) -> None:
    wider = msgspec.structs.replace(A, columns=(*A.columns, Column("more", 25)))

    async def story(log: Log) -> None:
        await log.add(A)
        changes = [await log.change(Change(1, A.oid, 20, 0, "alter", wider.id, A.id), wider),
                   await log.change(Change(1, A.oid, 30, 0, "truncate", wider.id))]
        both, sink = homes(log), entry(f"kafka:?schema={schema}&partitions=2")
        for epoch in (5, 6):                                                 # the second finds what stands, in either
            home = await both.open(sink)
            await home.take_ddl(epoch)
            for change in changes:
                assert await home.write_change(epoch, id_of(A.oid), change)
            await home.leave()
        [[message]] = await told(log, "shop.schema-changes", 1)
        payload = message["payload"] if schema == "true" else message
        assert [one["type"] for one in payload["tableChanges"]] == ["ALTER"]
        rows = await told(log, "shop.public.a", 2)
        assert [[(one.get("payload") or one)["op"] for one in partition] for partition in rows] == [["t"], ["t"]]
        start, end = await log.client.ends("shop.schema-changes", 0)
        keys = [record.key async for page in log.client.read("shop.schema-changes", 0, start, end) for record in page]
        assert [("schema" in json.loads(key or b"{}")) == (schema == "true") for key in keys if key] == [True]

    run(tmp_path, story)


def test_K6_truncations_are_left_out_only_where_debeziums_option_says_so(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await log.add(A)
        number = await log.change(Change(1, A.oid, 20, 0, "truncate", A.id))
        home = await homes(log).open(entry("kafka:?skipped.operations=t"))
        await home.take_ddl(5)
        assert await home.write_change(5, id_of(A.oid), number)
        assert "shop.public.a" not in await log.client.topics()
        await home.leave()

    run(tmp_path, story)
