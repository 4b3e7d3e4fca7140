"""HTTP of changefeeds: whichever capture is asked, the coordinator answers, with the maintainer's word [A1, C8, C9]."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from pyspark.errors.exceptions.connect import SparkConnectException

from millrace.model.progress import CopyStarted
from millrace.model.quarantine import quarantine_topic
from millrace.model.rounds import TaskPlan
from millrace.pipeline.session import Place, Session
from support_faces import ITEMS, ORDERS, Faces, run

PATH = "/api/v2/changefeeds"
BODY = {"id": "orders", "source": "shop", "sink": "kafka:?format=debezium-json", "tables": ["public.*"]}


def refused(answer: httpx.Response, status: int, code: str) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["error_code"] == code
    return str(answer.json()["error_msg"])


def is_normal(body: Any) -> bool:
    return bool(body["state"] == "normal" and body["working_count"] == 2 and body["checkpoint"] is not None)


def test_A1_C8_a_changefeed_through_its_life_over_any_capture(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        one, other = w.http[w.coordinator], w.http[1 - w.coordinator]
        made = await other.post(PATH, json=BODY)
        assert made.status_code == 201, made.text
        assert made.headers["location"] == f"{PATH}/orders"
        assert (made.json()["id"], made.json()["tables"], made.json()["warnings"]) == ("orders", ["public.*"], [])
        refused(await one.post(PATH, json=BODY), 409, "changefeed_exists")
        found = await w.eventually(f"{PATH}/orders", is_normal)
        assert (found["checkpoint"], found["resolved"], found["lag_bytes"]) == ("0/3E8", "0/3E8", "0")
        assert (found["tables_count"], found["dispatchers_count"], found["isolated_count"]) == (2, 2, 0)
        assert found["maintainer"] in (0, 1)
        for client in w.http:
            listed = (await client.get(PATH)).json()
            assert (listed["total"], listed["items"][0]["state"]) == (1, "normal")
        assert (await one.get(f"{PATH}?state=failed")).json() == {"total": 0, "items": []}
        assert "normal, warning, failed" in refused(await one.get(f"{PATH}?state=bogus"), 400, "invalid_request")

        paused = (await other.post(f"{PATH}/orders/pause")).json()
        assert (paused["state"], paused["checkpoint"], paused["maintainer"]) == ("stopped", "0/3E8", None)
        for client in w.http:
            assert (await client.get(PATH)).json()["items"][0]["checkpoint"] == "0/3E8", "where it will go on"
        assert (await one.post(f"{PATH}/orders/pause")).status_code == 200
        resumed = (await other.post(f"{PATH}/orders/resume")).json()
        assert resumed["state"] in ("normal", "warning")
        again = await w.eventually(f"{PATH}/orders", is_normal, 1)
        assert again["maintainer_epoch"] > found["maintainer_epoch"]

        gone = await other.delete(f"{PATH}/orders")
        assert (gone.status_code, gone.json()["state"]) == (202, "removed")
        refused(await one.get(f"{PATH}/orders"), 404, "unknown_changefeed")
        refused(await one.delete(f"{PATH}/orders"), 404, "unknown_changefeed")
        assert await w.log.stored() == {}

    run(tmp_path, story)


def test_C9_tables_operators_and_blockers_come_from_the_maintainer(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        await w.http[0].post(PATH, json=BODY)
        found = await w.eventually(f"{PATH}/orders", is_normal)
        for client in w.http:
            tables = (await client.get(f"{PATH}/orders/tables")).json()
            assert (tables["total"], tables["why"]) == (2, "")
            assert [(t["table"], t["oid"], t["checkpoint"], t["isolated"], t["copying"]) for t in tables["items"]] == [
                (ORDERS.full_name, 1, "0/3E8", False, False), (ITEMS.full_name, 2, "0/3E8", False, False)]
            assert [d["partitions"] for t in tables["items"] for d in t["dispatchers"]] == [[0], [0, 1]]
            assert {d["state"] for t in tables["items"] for d in t["dispatchers"]} == {"working"}
            assert (await client.get(f"{PATH}/orders/operators")).json()["why"] == ""
        # Rows that nobody moves: the checkpoint waits, and says for whom.
        await w.log.rows(1, 0, 3, lsn=1500)
        await w.log.mark(2000)
        waits = await w.eventually(f"{PATH}/orders/blockers", lambda body: body["total"] > 0, 1)
        assert (waits["items"][0]["what"], waits["items"][0]["owner"]) == ("checkpoint", "maintainer of orders")
        assert waits["items"][0]["reason"] == f"partition {ORDERS.full_name}/0 is behind"
        assert found["tables"] == ["public.*"]
        found = (await w.http[0].get(f"{PATH}/orders")).json()
        assert (found["resolved"], found["oldest_blocker"]["what"]) == ("0/7D0", "checkpoint")
        assert ORDERS.full_name in found["oldest_blocker"]["reason"]
        assert int(found["lag_bytes"]) > 0
        reign = w.captures[w.coordinator].reign
        assert reign is not None
        reader, reign.hosts["shop"].reader = reign.hosts["shop"].reader, None      # it is being placed again
        for client in w.http:
            tables = (await client.get(f"{PATH}/orders/tables")).json()
            assert [t["table"] for t in tables["items"]] == [ORDERS.full_name, ITEMS.full_name], "the log has them, too"
            assert ORDERS.full_name in (await client.get(f"{PATH}/orders/blockers")).json()["items"][0]["reason"]
        reign.hosts["shop"].reader = reader
        # A cause that came later is told before what follows from it.
        await w.captures[1].spark.run([TaskPlan("orders", 1, "mover", b"", (), ())])
        waits = (await w.http[0].get(f"{PATH}/orders/blockers")).json()
        assert [(one["owner"], one["what"]) for one in waits["items"]] == [
            ("Spark", "rounds of capture 1"), ("maintainer of orders", "checkpoint")]
        assert waits["items"][0]["age_s"] < waits["items"][1]["age_s"]
        (listed,) = (await w.http[0].get(PATH)).json()["items"]
        assert (listed["oldest_blocker"]["owner"], listed["why"]) == ("Spark", "no Spark: spark.remote: missing")
        await w.log.tell(CopyStarted(1, 1, 2, "__millrace.shop.copy.1", 1, 1200, "snapshot"))
        copied = await w.eventually(f"{PATH}/orders/tables", lambda body: any(t["copying"] for t in body["items"]), 1)
        assert [t["oid"] for t in copied["items"] if t["copying"]] == [2]

    run(tmp_path, story)


def test_C9_what_the_maintainer_cannot_say_is_unknown_with_the_reason(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        made = await w.http[0].post(PATH, json={**BODY, "paused": True})
        assert (made.json()["state"], made.json()["maintainer"]) == ("stopped", None)
        assert made.json()["checkpoint"] is None
        assert made.json()["why"] == "it has no position yet: it begins with what stands in its tables"
        for view in ("tables", "blockers"):
            said = (await w.http[1].get(f"{PATH}/orders/{view}")).json()
            assert (said["items"], said["why"]) == ([], "it does not run")
        assert (await w.http[1].get(f"{PATH}/orders/tables")).json()["total"] is None
        await w.http[0].post(f"{PATH}/orders/resume")
        found = await w.eventually(f"{PATH}/orders", is_normal)
        host = w.captures[found["maintainer"]].feeds.maintainers["orders"]
        host.epoch -= 1                                  # as if the recorded one had not come yet
        silent = (await w.http[0].get(f"{PATH}/orders")).json()
        why = f"capture {found['maintainer']} does not maintain it yet"
        assert (silent["state"], silent["why"]) == ("warning", why)
        assert silent["checkpoint"] is silent["lag_bytes"] is silent["working_count"] is None
        host.epoch += 1

    run(tmp_path, story)


REFUSED: list[tuple[dict[str, Any], int, str, str]] = [
    ({"source": "none"}, 404, "unknown_source", "none"),
    ({"id": "A b"}, 400, "invalid_request", "small letters"),
    ({"tables": ["public.*", "orders"]}, 400, "invalid_table_rule", "tables[1]: a '.' between"),
    ({"tables": []}, 400, "invalid_request", "at least one table rule"),
    ({"sink": "kafka:?fromat=json"}, 400, "invalid_sink_uri", "\n       ^^^^^^"),
    ({"sink": "kafka:?topic=a/b"}, 400, "invalid_sink_uri", "\n              ^"),
    ({"sink": "kafka:?partition=column:nope"}, 400, "invalid_request",
     "or partition=key\nkafka:?partition=column:nope\n                        ^^^^"),
    ({"settings": [{"tables": "public.orders", "partition_by": "column:id,note"}]}, 400, "invalid_request",
     "\ncolumn:id,note\n          ^^^^"),
    ({"tables": ["public.*"], "rules": ["public.*"]}, 400, "invalid_request", "give tables"),
    ({"sink": "s3://bucket/x"}, 400, "invalid_request", "sink: 's3' is no sink; there is kafka:?format=…\ns3:…\n^^"),
    ({"sink": "kafka://u:geheim@h:9092"}, 400, "invalid_request", "in the clear"),
    ({"sink": "kafka:?topic=all"}, 400, "invalid_request", "share topic 'all'"),
    ({"sink": "kafka:?format=json&replication=9"}, 400, "invalid_sink_uri", "there are 1; give 1 at most"),
    ({"settings": [{"tables": "public.orders", "filter": "sum(total) > 1"}]}, 400, "invalid_expression", "\n^^^"),
    ({"settings": [{"tables": "public.orders", "projection": ["note"]}]}, 400, "invalid_request", "key is missing"),
    ({"settings": [{"tables": "public.orders", "more": 1}]}, 400, "invalid_request",
     "settings[0].more: no such field; there are tables, filter, projection, topic, partition_by"),
    ({"settings": [{"tables": "public.orders", "filter": "total > 1"}]}, 503, "unreachable", "by Spark: spark.remote"),
    ({"start": "0/1"}, 400, "invalid_request", "start: no such field; there are id, source, sink, tables,"),
    ({"on_error": "maybe"}, 400, "invalid_request", "on_error: Invalid enum value 'maybe'; there are "),
    ({"tables": "public.*"}, 400, "invalid_request", "tables: Expected `array | null`, got `str`"),
    ({"settings": [{"tables": "public.orders", "projection": ["id", 5]}]}, 400, "invalid_request",
     "settings[0].projection[1]: Expected `str`, got `int`"),
    ({"settings": [{"filter": "total > 1"}]}, 400, "invalid_request", "settings[0].tables: missing"),
]


def test_P4_A1_what_cannot_be_is_refused_at_creation_with_the_place_shown(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        for change, status, code, says in REFUSED:
            said = refused(await w.http[1 - w.coordinator].post(PATH, json={**BODY, **change}), status, code)
            assert says in said, (change, said)
            assert "geheim" not in said
        assert (await w.http[0].get(PATH)).json() == {"total": 0, "items": []}
        unknown = refused(await w.http[0].post(PATH, json={**BODY, "start": 1}), 400, "invalid_request")
        assert unknown.endswith("on_error, on_schema_break, paused"), "what only old clients send is not named"
        for content, says in ((b"", "the body is empty"), (b"{", "the body is no JSON"), (b"[]", "the body: Expected")):
            assert says in refused(await w.http[0].post(PATH, content=content), 400, "invalid_request")
        elsewhere = refused(await w.http[0].get("/api/v2/topics"), 404, "not_found")
        assert "this is a capture: ask a broker" in elsewhere
        for verb, path in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"),
                           ("GET", "/tables"), ("GET", "/operators"), ("GET", "/blockers")):
            body = {} if verb == "PUT" else None
            refused(await w.http[1].request(verb, f"{PATH}/none{path}", json=body), 404, "unknown_changefeed")

    run(tmp_path, story)


class Gone:
    """A session of a Spark that was started anew, as pyspark has it."""

    def __getattr__(self, name: str) -> Any:
        raise SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={})


class GoneSession(Session):
    def _open(self) -> Any:
        return Gone()

    def answers(self) -> bool:
        return True


def test_P8_A1_a_session_that_died_is_opened_again_and_at_last_spark_is_said_to_be_away(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        sessions = [GoneSession(Place(remote="sc://nowhere")) for _ in w.captures]
        for capture, session in zip(w.captures, sessions, strict=True):
            capture.spark._session = session
        body = {**BODY, "settings": [{"tables": "public.orders", "filter": "total > 1"}]}
        said = refused(await w.http[0].post(PATH, json=body), 503, "unreachable")
        assert said.startswith("filters and projections are checked by Spark: Spark at sc://nowhere: [NO_ACTIVE_SESS")
        assert sum(session.opened_count for session in sessions) == 2
        assert (await w.http[0].post(PATH, json=BODY)).status_code == 201, "nothing is asked, nobody is needed"

    run(tmp_path, story)


def test_K2_a_topic_of_another_changefeed_is_refused_at_creation_and_update(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        one = w.http[0]
        await one.post(PATH, json={**BODY, "paused": True})
        said = refused(await w.http[1].post(PATH, json={**BODY, "id": "b1", "sink": "kafka:?format=json"}), 409,
                       "topic_taken")
        assert "'shop.public.orders' (and 1 more of its tables), where changefeed 'orders' writes" in said
        assert "topic=b1.{schema}.{table}" in said
        assert (await one.get(PATH)).json()["total"] == 1, "nothing was made"
        own = {**BODY, "id": "b1", "sink": "kafka:?format=json&topic=b1.{table}", "tables": ["public.orders"]}
        assert (await one.post(PATH, json={**own, "paused": True})).status_code == 201

        theirs = {"settings": [{"tables": "public.orders", "topic": "shop.public.items"}]}
        assert "writes public.items" in refused(await one.put(f"{PATH}/b1", json=theirs), 409, "topic_taken")
        mine = {"settings": [{"tables": "public.orders", "topic": "b1.other"}], "tables": ["public.*"]}
        assert (await one.put(f"{PATH}/b1", json=mine)).status_code == 200
        assert (await one.put(f"{PATH}/orders", json={"on_error": "fail"})).status_code == 200

    run(tmp_path, story)


def test_K2_of_two_creations_at_once_into_one_topic_one_is_refused(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        both = await asyncio.gather(*(client.post(PATH, json={**BODY, "id": name, "paused": True})
                                      for name, client in zip("ab", w.http, strict=True)))
        assert sorted(answer.status_code for answer in both) == [201, 409]

    run(tmp_path, story)


def test_a_rule_that_matches_nothing_is_a_warning(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        made = await w.http[0].post(PATH, json={**BODY, "tables": ["public.orders", "public.ordres"], "paused": True})
        assert made.json()["warnings"] == [
            {"about": "tables: public.ordres", "text": "matches no table of the source now"}]
        made = await w.http[1].post(PATH, json={**BODY, "id": "later", "tables": ["next.*"]})
        assert "those that come and match are taken" in made.json()["warnings"][0]["text"]
        found = await w.eventually(f"{PATH}/later", lambda body: body["state"] == "normal")
        assert (found["tables_count"], found["dispatchers_count"]) == (0, 0)

    run(tmp_path, story)


def test_C9_a_table_that_its_source_carries_no_more_is_said_by_the_changefeed(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        await w.http[0].post(PATH, json=BODY)
        await w.http[0].post(PATH, json={**BODY, "id": "others", "tables": ["public.items"], "sink": "kafka:?topic=o"})
        await w.eventually(f"{PATH}/others", lambda body: body["state"] == "normal" and not body["why"])
        before = await w.eventually(f"{PATH}/orders", is_normal)
        assert (before["why"], before["warnings"]) == ("", [])
        reign = w.captures[w.coordinator].reign
        assert reign is not None
        reader = reign.hosts["shop"].reader
        assert reader is not None
        reader.state.tables[ORDERS.oid].state, reader.state.tables[ORDERS.oid].reason = "refused", "it has no key"
        for client in w.http:
            found = (await client.get(f"{PATH}/orders")).json()
            (warning,) = found["warnings"]
            assert warning["about"] == f"table {ORDERS.full_name}"
            assert "is not delivered" in warning["text"]
            assert warning["text"].endswith(": it has no key")
            listed = {one["id"]: one["why"] for one in (await client.get(PATH)).json()["items"]}
            assert listed["orders"] == found["why"]
            assert f"does not carry {ORDERS.full_name} now" in found["why"]
            assert listed["others"] == "", "it does not take that table"

    run(tmp_path, story)


def test_C4_an_update_takes_effect_while_it_runs(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        await w.http[0].post(PATH, json=BODY)
        path = f"{PATH}/orders"
        await w.eventually(path, is_normal)
        before = await epochs(w)
        left = (await w.http[1].put(path, json={"tables": ["public.orders"], "sink": BODY["sink"]})).json()
        assert (left["tables"], left["warnings"]) == (["public.orders"], [])
        await w.eventually(path, lambda body: (body["tables_count"], body["state"]) == (1, "normal"))
        assert await epochs(w) == {1: before[1]}, "who stays notices nothing"
        assert {key.topic_id for key in await w.log.stored()} & set(w.log.ids.values()) == {w.log.ids[1]}

        settings = [{"tables": "public.orders", "topic": "all_orders"}]
        changed = (await w.http[0].put(path, json={"tables": ["public.*"], "settings": settings})).json()
        assert changed["settings"][0]["topic"] == "all_orders"
        await w.eventually(path, is_normal)
        after = await epochs(w)
        assert after[1] > before[1], "taken over with the settings that it has now"
        assert after[2] > before[2], "it begins anew"
        assert (await w.log.stored())[w.log.key(2)].writers[0].first_epoch > before[2]
        await w.http[0].put(path, json={"on_error": "fail"})
        async with asyncio.timeout(20):
            while (found := await epochs(w)).keys() != after.keys() or any(found[oid] <= after[oid] for oid in after):
                await asyncio.sleep(0.05)

    run(tmp_path, story)


async def epochs(w: Faces) -> dict[int, int]:
    """Of those who hold the positions of each table."""
    return {oid: stored.epoch for oid in (1, 2) if (stored := (await w.log.stored()).get(w.log.key(oid))) is not None}


def test_C8_what_cannot_change_is_refused_with_the_remedy(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        await w.http[0].post(PATH, json={**BODY, "paused": True})
        path = f"{PATH}/orders"
        for body in ({"sink": "kafka:?format=json"}, {"source": "other"}):
            assert "make another changefeed" in refused(await w.http[1].put(path, json=body), 400, "invalid_request")
        said = {"settings": [{"tables": "public.orders", "topic": "a/b"}]}
        refused(await w.http[1].put(path, json=said), 400, "invalid_topic_name")
        refused(await w.http[1].put(path, json={"tables": ["orders"]}), 400, "invalid_table_rule")
        refused(await w.http[1].put(path, json={"tables": []}), 400, "invalid_request")

    run(tmp_path, story)


def test_C6_a_changefeed_goes_on_from_another_position(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        for topic in ("shop.public.orders", "shop.public.items", quarantine_topic("orders")):
            await w.log.client.create_topic(topic, partitions=1)     # as dispatchers would
        await w.http[0].post(PATH, json=BODY)
        path = f"{PATH}/orders"
        await w.eventually(path, is_normal)
        await w.log.rows(1, 0, 3, lsn=1500)
        await w.log.mark(2000)
        await w.log.move(1, 0, 3, resolved=2000)
        await w.eventually(path, lambda body: body["checkpoint"] == "0/7D0")
        said = refused(await w.http[1].post(f"{path}/resume", json={"position": "0/5DC"}), 409, "position_refused")
        assert "pause it" in said
        await w.http[0].post(f"{path}/pause")
        wrong = {"0/3E7": "or `beginning`", "0/7D1": "or `now`", "0/0": "no commit", "0/1": "no commit"}
        for position, says in wrong.items():
            answer = await w.http[1].post(f"{path}/resume", json={"position": position})
            assert says in refused(answer, 409, "position_refused")
        for position in ("12", ""):
            assert "is not an LSN" in refused(
                await w.http[0].post(f"{path}/resume", json={"position": position}), 400, "invalid_request")
        back = (await w.http[1].post(f"{path}/resume", json={"position": "0/4B0"})).json()
        assert "are delivered, again" in back["warnings"][0]["text"]
        await w.eventually(path, lambda body: body["checkpoint"] == "0/4B0")
        assert (await w.log.stored())[w.log.key(1)].at == (0, 0)

        await w.http[0].post(f"{path}/pause")
        assert (await w.http[1].get(path)).json()["checkpoint"] == "0/4B0"
        ahead = (await w.http[1].post(f"{path}/resume", json={"position": "now"})).json()
        assert "after its checkpoint 0/4B0 up to there are skipped" in ahead["warnings"][0]["text"]
        await w.eventually(path, lambda body: body["checkpoint"] == "0/7D0")
        assert (await w.log.stored())[w.log.key(1)].at == (3, 0)
        await w.http[0].post(f"{path}/pause")
        await w.http[0].post(f"{path}/resume", json={"position": "beginning"})
        await w.eventually(path, lambda body: body["state"] == "normal" and body["working_count"] == 2)
        assert (await w.log.stored())[w.log.key(1)].at == (0, 0)

    run(tmp_path, story)
