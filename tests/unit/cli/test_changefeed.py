"""`millrace changefeed` and `millrace quarantine` over the real API of two captures [A2, C8, C9, P9]."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog

from millrace.changefeed.quarantine import Quarantine
from millrace.cli.main import run as run_command
from millrace.core.sources.registry import table_topic
from millrace.errors import Unreachable
from millrace.model.positions import Point
from millrace.model.quarantine import Quarantined, Settled, encode_quarantined, quarantine_topic
from millrace.model.rounds import TaskPlan
from millrace.model.sources import ChunkSpan, CopyPlanned
from millrace.sink.kafka.headers import NAME, Provenance, value_of
from millrace.source.reading.status import CopyStatus
from millrace.wire.changes import HEADER_KEY, BatchHeader, BatchKind, encode_header, encode_rows
from millrace.wire.pg.types import AFTER, arrow_schema
from millrace.wire.records import Record
from support_brokers import until
from support_faces import ORDERS, Faces, run
from support_http import TOKEN

CREATE = ("changefeed", "create", "orders", "--source", "shop", "--tables", "public.*", "--sink", "kafka:?format=json")


@pytest.fixture(autouse=True)
def _quiet_captures() -> Iterator[None]:
    """They share standard output with the commands here."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


class Commands:
    """Run beside the captures; what they print is kept."""

    def __init__(self, w: Faces, dir_: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._dir, self._capsys = dir_, capsys
        (dir_ / "run").mkdir(parents=True)
        children = [{"kind": "capture", "pid": 1, "http": f"127.0.0.1:{port}"} for port in w.http_ports]
        (dir_ / "token").write_text(TOKEN)
        (dir_ / "run" / "state.json").write_text(
            json.dumps({"supervisor": {"pid": 1, "start_time": 0}, "children": children}))

    async def __call__(self, *arguments: str, code: int = 0) -> str:
        """What it printed; on standard error if it was refused."""
        self._capsys.readouterr()
        ended = await asyncio.to_thread(run_command, [*arguments, "--dir", str(self._dir)])
        out, err = self._capsys.readouterr()
        assert ended == code, out + err
        return err if code else out

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self(*arguments, "-o", "json"))


def test_A2_C8_a_changefeed_through_its_life_by_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story(w: Faces) -> None:
        millrace = Commands(w, tmp_path / "cluster", capsys)
        made = await millrace(*CREATE, "--wait")
        assert made.splitlines()[0] == "created orders: shop to kafka:?format=json"
        assert made.splitlines()[-1] == "orders moves 2 tables"
        assert "exists" in await millrace(*CREATE, code=4)
        assert "normal" in await millrace("changefeed", "list")
        assert "2 of 2" in await millrace("changefeed", "get", "orders")
        body = (await w.http[0].get("/api/v2/changefeeds/orders/tables")).json()
        assert await millrace.json("changefeed", "tables", "orders") == body
        assert "public.orders" in await millrace("changefeed", "tables", "orders")
        reader: Any = w.captures[w.coordinator].reign.hosts["shop"].reader       # type: ignore[union-attr]
        reader.state.replay(CopyPlanned(1, 1, ORDERS.oid, "c", 1, "watermark", 0, (ChunkSpan(ORDERS.oid),)))
        reader.status.copies = [CopyStatus(1, ORDERS.oid, "watermark", "running", 0.42, 1500, 9)]
        copied = (await millrace.json("changefeed", "tables", "orders"))["items"]
        assert [(t["table"], t["state"]) for t in copied] == [("public.orders", "copying"), ("public.items", "working")]
        assert "42 %, 1,500 rows" in " ".join((await millrace("changefeed", "tables", "orders")).split())
        reader.status.copies = []
        for view in ("operators", "blockers"):
            assert (await millrace.json("changefeed", view, "orders"))["why"] == ""
            await millrace("changefeed", view, "orders")
        assert await millrace("changefeed", "pause", "orders") == "paused orders\n"
        assert (await millrace.json("changefeed", "pause", "orders"))["state"] == "stopped"
        assert (await millrace.json("changefeed", "update", "orders", "--on-error", "fail"))["on_error"] == "fail"
        await millrace("changefeed", "update", "orders", "--on-error", "isolate")
        assert "is not an LSN" in await millrace("changefeed", "resume", "orders", "--position", "", code=2)
        assert "not all: it does not run" in await millrace("changefeed", "tables", "orders")
        settings = tmp_path / "settings.yaml"
        settings.write_text("settings:\n- tables: public.orders\n  topic: all_orders\n")
        assert await millrace("changefeed", "update", "orders", "--config", str(settings)) == "updated orders\n"
        assert "topic all_orders" in await millrace("changefeed", "get", "orders")
        assert "or `beginning`" in await millrace("changefeed", "resume", "orders", "--position", "0/1", code=4)
        resumed = await millrace("changefeed", "resume", "orders", "--position", "now", "--wait")
        assert resumed.splitlines()[1].startswith("warning: position: changes committed after 0/3E8 are delivered")
        assert "moves 2 tables" in resumed
        assert "pause it" in await millrace("changefeed", "resume", "orders", "--position", "now", code=4)
        assert await millrace("changefeed", "update", "orders", "--tables", "public.orders") == "updated orders\n"
        await w.eventually("/api/v2/changefeeds/orders", lambda body: body["tables_count"] == 1)
        assert await millrace("changefeed", "update", "orders", "--tables", "public.*") == "updated orders\n"
        await w.eventually("/api/v2/changefeeds/orders", lambda body: body["working_count"] == 2)
        await w.log.client.create_topic("all_orders", partitions=1)
        gone = await millrace("changefeed", "remove", "orders", "--wait")
        assert gone.splitlines() == ["removed orders: its positions, records and quarantine", "kept: topic all_orders"]
        await millrace("changefeed", "get", "orders", code=3)
        assert (await millrace.json(*CREATE, "--wait"))["working_count"] == 2, "JSON alone, as it is then"
        await millrace("changefeed", "pause", "orders")
        assert (await millrace.json("changefeed", "resume", "orders", "--wait"))["state"] == "normal"
        assert (await millrace.json("changefeed", "remove", "orders", "--wait"))["state"] == "removed"

    run(tmp_path, story)


def test_A2_what_is_refused_shows_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story(w: Faces) -> None:
        millrace = Commands(w, tmp_path / "cluster", capsys)
        said = await millrace(*CREATE[:-1], "kafka:?fromat=json", code=2)
        assert said.splitlines()[1:] == ["kafka:?fromat=json", "       ^^^^^^"]
        assert said.startswith("millrace: sink: 'fromat' is no key")
        (tmp_path / "spec.yaml").write_text("settings:\n- {tables: public.orders, filter: 'sum(total) > 1'}\n")
        said = await millrace(*CREATE, "--config", str(tmp_path / "spec.yaml"), code=2)
        assert said.splitlines()[1:] == ["sum(total) > 1", "^^^"]
        assert "'none'" in await millrace("changefeed", "create", "x", "--source", "none", "--sink", "kafka:", code=3)

    run(tmp_path, story)


@pytest.mark.parametrize("arguments", [
    ["changefeed", "create", "x"], ["changefeed", "create", "x", "--source", "shop"], ["changefeed", "get", ""],
    ["changefeed", "create", "x", "--source", "s", "--sink", "kafka://u:geheim@h"], ["changefeed", "update", "x"],
    ["changefeed", "create", "x", "--config", "/no/such/file"], ["quarantine", "drop", "x"],
    ["quarantine", "drop", "x", "1", "--all"], ["changefeed", "create", "x", "--config", "/dev/null"],
])
def test_A2_wrong_use_is_one_line_and_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "geheim" not in err


def change(n: int, lsn: int, note: str = "too long") -> bytes:
    """An insert of row `n`, as the log has it."""
    row = {"op": 0, "lsn": lsn, "commit_lsn": lsn, "commit_ts": 0, "xid": 1, "seq": 0, AFTER + "id": n,
           AFTER + "note": note, AFTER + "total": "7"}
    return encode_rows(pa.RecordBatch.from_pylist([row], schema=arrow_schema(ORDERS, before=False)))


async def put_aside(w: Faces, n: int, offset: int = 0, note: str = "too long") -> None:
    """As a mover does with a row that cannot be written. `offset`: of its record in the source topic."""
    client = w.log.client
    row = Quarantined(table=ORDERS.full_name, schema_id=ORDERS.id, before=False, commit_lsn=900 + n, seq=0,
                      reason=f"too_large: {n} bytes", change=change(n, 900 + n, note))
    header = value_of(Provenance(w.log.ids[ORDERS.oid].bytes, 0, 77, 3), Point(offset, 0))
    record = Record(encode_quarantined(row), b'{"id":%d}' % n, ((NAME, header),))
    await client.append(quarantine_topic("orders"), 0, [record])


def test_P9_rows_in_quarantine_are_listed_shown_and_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story(w: Faces) -> None:
        millrace, client = Commands(w, tmp_path / "cluster", capsys), w.log.client
        await millrace(*CREATE, "--paused")
        assert (await millrace.json("quarantine", "list", "orders"))["total"] == 0
        await client.create_topic(quarantine_topic("orders"), partitions=1)
        for n in (1, 2, 3):
            await put_aside(w, n)
        counts = (await millrace.json("changefeed", "get", "orders"))["quarantined_count"], (
            await millrace.json("changefeed", "list"))["items"][0]["quarantined_count"]
        assert counts == (3, 3)
        assert "rows in quarantine 3" in " ".join((await millrace("changefeed", "get", "orders")).split())
        listed = (await millrace.json("quarantine", "list", "orders"))["items"]
        assert [(r["table"], r["key"], r["reason"]) for r in listed] == [
            ("public.orders", f'{{"id":{n}}}', f"too_large: {n} bytes") for n in (1, 2, 3)]
        assert (await millrace.json("quarantine", "list", "orders", "--table", "public.items"))["total"] == 0
        assert "has no table 'nope'" in await millrace("quarantine", "list", "orders", "--table", "nope", code=3)
        await millrace("quarantine", "drop", "orders", "all", code=2)
        shown = await millrace.json("quarantine", "show", "orders", listed[1]["row"])
        assert shown["change"] == {
            "op": "insert", "unchanged": [], "after": {"id": "2", "note": "too long", "total": "7"}}
        assert "too long" in await millrace("quarantine", "show", "orders", listed[1]["row"])
        assert "2 rows" in await millrace("quarantine", "drop", "orders", listed[0]["row"], listed[2]["row"])
        assert [r["row"] for r in (await millrace.json("quarantine", "list", "orders"))["items"]] == [listed[1]["row"]]
        assert (await millrace.json("changefeed", "get", "orders"))["quarantined_count"] == 1
        for gone in (listed[0]["row"], "12345", "x"):
            await millrace("quarantine", "show", "orders", gone, code=3)
            await millrace("quarantine", "drop", "orders", listed[1]["row"], gone, code=3)
        said = await millrace("changefeed", "remove", "orders", code=4)
        assert "1 rows in quarantine; settle them, or remove it with --drop-quarantine" in said
        assert "1 rows" in await millrace("quarantine", "drop", "orders", "--all")
        assert "removed" in await millrace("changefeed", "remove", "orders", "--wait")
        assert quarantine_topic("orders") not in await client.topics("__millrace.")

    run(tmp_path, story)


async def write_rows(w: Faces, *rows: int) -> None:
    """One record each in the topic of its table, as a reader writes them; marked, and moved over."""
    for n in rows:
        header = BatchHeader(kind=BatchKind.ROWS, schema_id=ORDERS.id.bytes, generation=1, epoch=1, first_lsn=900 + n,
                             first_seq=0, last_lsn=900 + n, last_seq=0, rows=1)
        record = Record(change(n, 900 + n), None, ((HEADER_KEY, encode_header(header)),))
        await w.log.client.append(table_topic("shop", ORDERS.oid), 0, [record])
    await w.log.move(ORDERS.oid, 0, len(rows), resolved=1000)


async def messages(w: Faces) -> list[Any]:
    return [json.loads(value) for _, value in await w.log.messages("shop.public.orders")]


def test_P9_a_row_is_replayed_once_and_only_while_it_is_the_last_of_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(w: Faces) -> None:
        millrace, client = Commands(w, tmp_path / "cluster", capsys), w.log.client
        await millrace(*CREATE, "--wait")
        await write_rows(w, 1, 2, 1)                     # the first row 1 was changed again
        await client.create_topic(quarantine_topic("orders"), partitions=1)
        await client.create_topic("shop.public.orders", partitions=1)
        await put_aside(w, 1, 0)
        await put_aside(w, 2, 1)
        first, second = [r["row"] for r in (await millrace.json("quarantine", "list", "orders"))["items"]]
        assert "pause it" in await millrace("quarantine", "replay", "orders", second, code=4)
        await millrace("changefeed", "pause", "orders")
        # One that still stood there on resumption would remove itself, by what the data path reports of its position.
        await until(lambda: not any(c.feeds.managers["orders"].machine.held for c in w.captures
                                    if "orders" in c.feeds.managers), "every dispatcher to be gone")
        assert "later change of the same key" in await millrace("quarantine", "replay", "orders", first, code=4)

        settle = Quarantine.settle

        async def dies(self: Quarantine, settled: Sequence[Settled]) -> None:
            if settled[0].how == "replayed":
                raise Unreachable("it died here")
            await settle(self, settled)

        monkeypatch.setattr(Quarantine, "settle", dies)
        await millrace("quarantine", "replay", "orders", second, code=6)
        monkeypatch.setattr(Quarantine, "settle", settle)
        assert [m["id"] for m in await messages(w)] == [2]
        said = await millrace("quarantine", "replay", "orders", second)
        assert said.startswith(f"replayed {second}: shop.public.orders, partition 0")
        assert [m["id"] for m in await messages(w)] == [2]
        assert [r["row"] for r in (await millrace.json("quarantine", "list", "orders"))["items"]] == [first]
        await millrace("quarantine", "replay", "orders", second, code=3)

        before = (await w.log.stored())[w.log.key(ORDERS.oid)]
        assert before.closed
        assert "moves 2 tables" in await millrace("changefeed", "resume", "orders", "--wait")
        after = (await w.log.stored())[w.log.key(ORDERS.oid)]
        assert (after.closed, after.at) == (False, before.at)
        assert after.epoch > before.epoch

    run(tmp_path, story)


def test_A2_P8_who_waited_for_a_changefeed_is_told_that_there_is_no_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(w: Faces) -> None:
        millrace = Commands(w, tmp_path / "cluster", capsys)
        await millrace(*CREATE, "--wait")
        for capture in w.captures:
            await capture.spark.run([TaskPlan("orders", 1, "mover", b"", (), ())])
        said = await millrace("changefeed", "resume", "orders", "--wait", "--timeout-s", "0.5", code=7)
        assert "orders: after 0.5 s still warning: no Spark: spark.remote: missing" in said

    run(tmp_path, story)


def test_P9_a_row_too_large_for_its_topic_is_replayed_once_the_topic_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(w: Faces) -> None:
        millrace, client = Commands(w, tmp_path / "cluster", capsys), w.log.client
        await millrace(*CREATE, "--wait")
        await write_rows(w, 1)
        await client.create_topic(quarantine_topic("orders"), partitions=1)
        await client.create_topic("shop.public.orders", partitions=1)
        await put_aside(w, 1, 0, "x" * 1_200_000)
        ((row,),) = [[r["row"] for r in (await millrace.json("quarantine", "list", "orders"))["items"]]]
        await millrace("changefeed", "pause", "orders")
        await until(lambda: not any(c.feeds.managers["orders"].machine.held for c in w.captures
                                    if "orders" in c.feeds.managers), "every dispatcher to be gone")
        said = await millrace("quarantine", "replay", "orders", row, "77", "78", code=1)
        assert said.startswith(f"millrace: row {row}: it still cannot be written: ")
        assert "1048588 are allowed" in said
        assert said.endswith("; not tried: 77, 78\n")
        answer = await client._anybody("IncrementalAlterConfigs", 0, {"validate_only": False, "resources": [{
            "resource_type": 2, "resource_name": "shop.public.orders", "configs": [
                {"name": "max.message.bytes", "config_operation": 0, "value": "5000000"}]}]})
        assert answer["responses"][0]["error_code"] == 0, answer
        partitions = w.log._node.broker.partitions
        await until(lambda: any(one.batch_bytes_max == 5_000_000 for one in partitions.values()), "the leader to know")
        assert "replayed" in await millrace("quarantine", "replay", "orders", row)
        assert [len(m["note"]) for m in await messages(w)] == [1_200_000]

    run(tmp_path, story)


def test_P9_P4_a_row_is_replayed_with_the_columns_that_its_table_shows_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story(w: Faces) -> None:
        millrace, client, spec = Commands(w, tmp_path / "cluster", capsys), w.log.client, tmp_path / "spec.yaml"
        spec.write_text("settings:\n- {tables: public.orders, projection: [note AS said, id]}\n")
        await millrace(*CREATE, "--config", str(spec), "--wait")
        await write_rows(w, 1, 2)
        await client.create_topic(quarantine_topic("orders"), partitions=1)
        await client.create_topic("shop.public.orders", partitions=1)
        await put_aside(w, 2, 1)
        ((row,),) = [[r["row"] for r in (await millrace.json("quarantine", "list", "orders"))["items"]]]
        await millrace("changefeed", "pause", "orders")
        await until(lambda: not any(c.feeds.managers["orders"].machine.held for c in w.captures
                                    if "orders" in c.feeds.managers), "every dispatcher to be gone")
        await millrace("quarantine", "replay", "orders", row)
        (told,) = await messages(w)
        assert {name: value for name, value in told.items() if not name.startswith("_")} == {
            "said": "too long", "id": 2}

    run(tmp_path, story)
