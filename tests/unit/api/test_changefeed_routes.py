"""HTTP of changefeeds: whichever capture is asked, the coordinator answers, with the maintainer's word [A1, C8, C9]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from millrace.model.progress import CopyStarted
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
        assert (made.json()["id"], made.json()["rules"], made.json()["warnings"]) == ("orders", ["public.*"], [])
        refused(await one.post(PATH, json=BODY), 409, "changefeed_exists")
        found = await w.eventually(f"{PATH}/orders", is_normal)
        assert (found["checkpoint"], found["resolved"], found["lag_bytes"]) == ("0/3E8", "0/3E8", "0")
        assert (found["tables_count"], found["dispatchers_count"], found["isolated_count"]) == (2, 2, 0)
        assert found["maintainer"] in (0, 1)
        for client in w.http:
            listed = (await client.get(PATH)).json()
            assert (listed["total"], listed["items"][0]["state"]) == (1, "normal")
        assert (await one.get(f"{PATH}?state=failed")).json() == {"total": 0, "items": []}

        paused = (await other.post(f"{PATH}/orders/pause")).json()
        assert (paused["state"], paused["checkpoint"], paused["maintainer"]) == ("stopped", None, None)
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
        assert "1/0 is behind" in waits["items"][0]["reason"]
        found = (await w.http[0].get(f"{PATH}/orders")).json()
        assert (found["resolved"], found["oldest_blocker"]["what"]) == ("0/7D0", "checkpoint")
        assert int(found["lag_bytes"]) > 0
        await w.log.tell(CopyStarted(1, 1, 2, "__millrace.shop.copy.1", 1, 1200, "snapshot"))
        copied = await w.eventually(f"{PATH}/orders/tables", lambda body: any(t["copying"] for t in body["items"]), 1)
        assert [t["oid"] for t in copied["items"] if t["copying"]] == [2]

    run(tmp_path, story)


def test_C9_what_the_maintainer_cannot_say_is_unknown_with_the_reason(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        made = await w.http[0].post(PATH, json={**BODY, "paused": True})
        assert (made.json()["state"], made.json()["maintainer"]) == ("stopped", None)
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
    ({"sink": "kafka://u:geheim@h:9092"}, 400, "invalid_request", "in the clear"),
    ({"sink": "kafka:?topic=all"}, 400, "invalid_request", "share topic 'all'"),
    ({"settings": [{"tables": "public.orders", "filter": "sum(total) > 1"}]}, 400, "invalid_expression", "\n^^^"),
    ({"settings": [{"tables": "public.orders", "projection": ["note"]}]}, 400, "invalid_request", "key is missing"),
    ({"settings": [{"tables": "public.orders", "more": 1}]}, 400, "invalid_request", "more"),
    ({"settings": [{"tables": "public.orders", "filter": "total > 1"}]}, 503, "unreachable", "no Spark is configured"),
    ({"start": "0/1"}, 400, "invalid_request", "start"),
]


def test_P4_A1_what_cannot_be_is_refused_at_creation_with_the_place_shown(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        for change, status, code, says in REFUSED:
            said = refused(await w.http[1 - w.coordinator].post(PATH, json={**BODY, **change}), status, code)
            assert says in said, (change, said)
            assert "geheim" not in said
        assert (await w.http[0].get(PATH)).json() == {"total": 0, "items": []}
        for verb, path in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"),
                           ("GET", "/tables"), ("GET", "/operators"), ("GET", "/blockers")):
            body = {} if verb == "PUT" else None
            refused(await w.http[1].request(verb, f"{PATH}/none{path}", json=body), 404, "unknown_changefeed")

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


def test_C8_settings_change_while_it_stands_still(tmp_path: Path) -> None:
    async def story(w: Faces) -> None:
        await w.http[0].post(PATH, json=BODY)
        wanted = {"settings": [{"tables": "public.orders", "topic": "all_orders"}], "on_error": "fail"}
        said = refused(await w.http[1].put(f"{PATH}/orders", json=wanted), 409, "refused")
        assert "pause it, update it, resume it" in said
        refused(await w.http[1].put(f"{PATH}/orders", json={"tables": ["a.b"]}), 400, "invalid_request")
        await w.http[0].post(f"{PATH}/orders/pause")
        refused(await w.http[1].put(f"{PATH}/orders", json={"settings": [{"tables": "public.orders", "topic": "a/b"}]}),
                400, "invalid_topic_name")
        changed = (await w.http[1].put(f"{PATH}/orders", json=wanted)).json()
        assert (changed["settings"][0]["topic"], changed["on_error"]) == ("all_orders", "fail")
        assert (await w.http[0].get(f"{PATH}/orders")).json()["settings"] == changed["settings"]

    run(tmp_path, story)
