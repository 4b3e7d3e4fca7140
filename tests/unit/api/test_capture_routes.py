"""HTTP on captures: whichever is asked, the coordinator answers [A1]; two captures, no broker or database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
import structlog

from millrace import limits
from millrace.api.app import HttpServer
from millrace.api.capture_app import CAPTURE_ROUTES, build
from millrace.api.problems import HUNG_UP
from millrace.api.proof import FORWARDED, Sent, is_proved, prove
from millrace.changefeed.capture import Capture, CaptureSettings
from millrace.changefeed.changefeeds import ChangefeedSettings
from millrace.changefeed.quarantine_counts import QuarantineCounts
from millrace.ops.metrics import CAPTURE_METRICS
from millrace.ops.ports import Ports
from millrace.ops.real import BootClock, RealFileSystem, RealRandom
from millrace.ops.secrets import Places
from millrace.pipeline.session import Place
from millrace.store.contract import Candidate
from millrace_sim.store import MemoryStore, MemoryStoreState
from support_brokers import Machine, OneProcess, until
from support_http import HEADERS, NAME, PEER_KEY, TOKEN, client_at, client_of, door, ended
from support_ports import free_ports
from support_secret import LINK_KEY, LOG_KEY

FAR = {"name": "far", "url": "postgresql://nobody:${env:MILLRACE_SECRET_UNSET}@127.0.0.1:1/none",
       "tables": ["public.*"]}

CLUSTER = UUID(int=7)


class Captures:
    def __init__(self, path: Path, count: int = 2) -> None:
        ports = free_ports(2 * count)
        self.ports, self.links = ports[:count], ports[count:]
        self.machine = Machine()
        self.store = MemoryStoreState(clock=BootClock())
        self.captures = [self._build(n, path) for n in range(count)]

    def _build(self, n: int, path: Path) -> Capture:
        ports = Ports(clock=BootClock(), random=RealRandom(), processes=OneProcess(self.machine), fs=RealFileSystem())
        settings = CaptureSettings(
            id=n, address=f"127.0.0.1:{self.ports[n]}", bootstrap=("127.0.0.1:1",), spool_dir=str(path / f"c{n}"),
            session_s=6.0, tenure_s=2.0, clock_drift_max=0.01, copy_processes=1, copy_on_spark=True,
            link=f"127.0.0.1:{self.links[n]}", changefeeds=self._changefeeds(n), http_key=PEER_KEY,
            places=Places(dirs=(str(path / "secrets"),), env=("MILLRACE_SECRET_*",)), log_key=LOG_KEY)
        return Capture(settings, ports, MemoryStore(self.store, ports, host=str(n)), fatal=lambda error: None)

    def _changefeeds(self, n: int) -> ChangefeedSettings:
        return ChangefeedSettings(
            cluster_id=CLUSTER, link_key=LINK_KEY, log_key=LOG_KEY, bootstrap=("127.0.0.1:1",), session_s=6.0,
            link_host="127.0.0.1", link_port=self.links[n], spark=lambda: Place(remote="sc://127.0.0.1:1"),
            spark_cores=1)

    @property
    def coordinator(self) -> int | None:
        return next((c.id for c in self.captures if c.reign is not None), None)


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[tuple[Captures, list[httpx.AsyncClient]]]:
    made = Captures(path)
    async with AsyncExitStack() as stack:
        clients = []
        for capture, port in zip(made.captures, made.ports, strict=True):
            server = HttpServer(build(capture, door(port)), ended=ended)
            await server.start("127.0.0.1", port)
            stack.push_async_callback(server.close)
            await capture.start()
            stack.push_async_callback(capture.stop)
            clients.append(await stack.enter_async_context(client_at(port)))
        await until(lambda: all(not c.not_ready() for c in made.captures), "both captures to be ready")
        yield made, clients


def run(path: Path, body: Callable[[Captures, list[httpx.AsyncClient]], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving(path) as (captures, clients):
            await body(captures, clients)

    asyncio.run(main())


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["error_code"] == code
    return found


def test_A1_a_request_to_any_capture_is_answered_by_the_coordinator(tmp_path: Path) -> None:
    async def body(captures: Captures, clients: list[httpx.AsyncClient]) -> None:
        assert captures.coordinator is not None
        other = clients[1 - captures.coordinator]
        made = await other.post("/api/v2/sources", json=FAR)
        assert made.status_code == 201
        assert made.headers["location"] == "/api/v2/sources/far"
        assert made.json()["url"] == FAR["url"]
        for client in clients:
            listed = (await client.get("/api/v2/sources")).json()
            assert (listed["total"], listed["items"][0]["name"]) == (1, "far")
            found = (await client.get("/api/v2/captures")).json()
            assert found["coordinator"] == captures.coordinator
            assert [item["is_coordinator"] for item in found["items"]].count(True) == 1
            problem(await client.post("/api/v2/sources", json=FAR), 409, "source_exists")

    run(tmp_path, body)


def test_A1_a_request_is_passed_on_once(tmp_path: Path) -> None:
    async def body(captures: Captures, clients: list[httpx.AsyncClient]) -> None:
        assert captures.coordinator is not None
        number = 1 - captures.coordinator
        path, address = "/api/v2/sources", f"127.0.0.1:{captures.ports[number]}"
        proof = prove(PEER_KEY, Sent("GET", address, path, forwarded="1"), time.time())
        passed_on = await clients[number].get(path, headers={FORWARDED: "1", "authorization": proof})
        problem(passed_on, 421, "not_coordinator")

    run(tmp_path, body)


def test_A10_a_header_makes_nobody_a_capture(tmp_path: Path) -> None:
    """Whoever says without a proof that a request was passed on is answered like everybody."""
    async def body(captures: Captures, clients: list[httpx.AsyncClient]) -> None:
        for client in clients:
            assert (await client.get("/api/v2/sources", headers={FORWARDED: "1"})).status_code == 200

    run(tmp_path, body)


def test_A10_a_request_is_passed_on_with_a_proof_and_without_the_callers_token(tmp_path: Path) -> None:
    """Whoever sits at the coordinator's address learns nothing that opens another door."""

    async def main() -> None:
        heard: list[bytes] = []

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            heard.append(head + await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0])))
            writer.write(b"HTTP/1.0 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(listen, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        made = Captures(tmp_path, 1)
        capture = made.captures[0]
        store = MemoryStore(made.store, capture.ports, host="other")
        await store.acquire("coordinator", Candidate(9, address, OneProcess(made.machine).me()), 2.0)
        async with client_of(build(capture, door())) as client:
            await capture.start()
            try:
                await until(lambda: capture.coordinator_id == 9, "the holder to be known")
                answer = await client.post("/api/v2/sources?a=b%2Fc", json=FAR)
            finally:
                await capture.stop()
                server.close()
                await server.wait_closed()
        found = problem(answer, 503, "unreachable")                # its refusal of us is not one of the caller
        assert "cluster.secret_file" in found["error_msg"]
        (raw,) = heard
        assert TOKEN.encode() not in raw
        head, _, sent = raw.partition(b"\r\n\r\n")
        lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        asked = Sent("POST", address, "/api/v2/sources?a=b%2Fc", sent, lines[FORWARDED])
        assert is_proved(PEER_KEY, asked, lines["Authorization"], time.time())
        assert "far" in sent.decode()

    asyncio.run(main())


def test_A1_a_coordinator_that_took_the_request_and_fell_silent_holds_nobody_up(tmp_path: Path) -> None:
    """Reading is answered by its successor; a change is given back, since it may have been made."""

    async def main() -> None:
        taken: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda reader, writer: taken.append(writer), "127.0.0.1", 0)
        address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        made = Captures(tmp_path, 1)
        ports = made.captures[0].ports
        store = MemoryStore(made.store, ports, host="other")
        other = Candidate(9, address, OneProcess(made.machine).me())
        await store.acquire("coordinator", other, 2.0)
        capture = made.captures[0]
        async with client_of(build(capture, door())) as client:
            await capture.start()
            try:
                await until(lambda: capture.coordinator_id == 9, "the holder to be known")
                read, write = await asyncio.gather(client.get("/api/v2/sources"),
                                                   client.post("/api/v2/sources", json=FAR))
                assert read.json() == {"total": 0, "items": []}
                problem(write, 503, "unreachable")
                assert capture.coordinator_id == 0
            finally:
                await capture.stop()
                silent.close()
                for writer in taken:
                    writer.close()
                    await writer.wait_closed()

    asyncio.run(main())


def test_A1_a_client_that_hangs_up_while_it_speaks_is_no_error(tmp_path: Path) -> None:
    async def main() -> None:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        capture = Captures(tmp_path, 1).captures[0]
        await capture.start()
        try:
            await until(lambda: capture.reign is not None, "the office")
            headers = [(b"host", NAME.encode()), (b"authorization", HEADERS["authorization"].encode())]
            await build(capture, door())({"type": "http", "method": "POST", "path": "/api/v2/sources",
                                          "headers": headers, "query_string": b"", "path_params": {}}, receive, send)
        finally:
            await capture.stop()
        assert sent[0]["status"] == HUNG_UP

    asyncio.run(main())


def test_A1_errors_are_the_same_through_any_capture(tmp_path: Path) -> None:
    async def body(captures: Captures, clients: list[httpx.AsyncClient]) -> None:
        for client in clients:
            problem(await client.get("/api/v2/sources/none"), 404, "unknown_source")
            problem(await client.delete("/api/v2/sources/none"), 404, "unknown_source")
            problem(await client.delete("/api/v2/sources/none?force=perhaps"), 400, "invalid_request")
            problem(await client.post("/api/v2/sources/none/tables/a.b/copy"), 404, "unknown_source")
            problem(await client.post("/api/v2/sources", content=b"{"), 400, "invalid_request")
            problem(await client.post("/api/v2/sources", json={**FAR, "more": 1}), 400, "invalid_request")
            problem(await client.post("/api/v2/sources", json={**FAR, "name": "a b"}), 400, "invalid_request")
            problem(await client.post("/api/v2/sources", json={**FAR, "tables": ["a"]}), 400, "invalid_table_rule")
            problem(await client.post("/api/v2/sources", content=b" " * (2 << 20)), 400, "invalid_request")
            problem(await client.get("/nowhere"), 404, "not_found")
            problem(await client.delete("/api/v2/sources/"), 404, "not_found")
        said = problem(await clients[0].post("/api/v2/sources", json={**FAR, "url": "postgresql://u:geheim@h/d"}), 400,
                       "invalid_request")
        assert "geheim" not in str(said)
        assert (await clients[0].get("/api/v2/sources")).json() == {"total": 0, "items": []}

    run(tmp_path, body)


@pytest.mark.parametrize("url", [
    "postgresql://u:${file:%s/elsewhere}@127.0.0.1:1/d", "postgresql://u:${file:%s/secrets/../elsewhere}@127.0.0.1:1/d",
    "postgresql://u:${file:/etc/passwd}@127.0.0.1:1/d", "${env:HOME}", "postgresql://u:${env:PATH}@127.0.0.1:1/d",
    "postgresql://u@127.0.0.1:1/d?passfile=%s/elsewhere", "postgresql://u@127.0.0.1:1/d?sslkey=%s/elsewhere",
    "postgresql://u@127.0.0.1:1/d?service=x"])
def test_A10_a_source_that_would_read_elsewhere_is_refused_and_not_stored(tmp_path: Path, url: str) -> None:
    (tmp_path / "elsewhere").write_text("geheim")
    url = url.replace("%s", str(tmp_path))

    async def body(captures: Captures, clients: list[httpx.AsyncClient]) -> None:
        for client in clients:
            answer = await client.post("/api/v2/sources", json={**FAR, "url": url})
            assert "geheim" not in problem(answer, 400, "reference_refused")["error_msg"]
            assert (await client.get("/api/v2/sources")).json() == {"total": 0, "items": []}

    run(tmp_path, body)


def test_A1_hostile_names_come_through(tmp_path: Path) -> None:
    async def body(captures: Captures, clients: list[httpx.AsyncClient]) -> None:
        await clients[0].post("/api/v2/sources", json=FAR)
        for client in clients:
            answer = await client.post('/api/v2/sources/far/tables/we%2Fird.%22x%20y%22%C3%BC%0A/copy')
            assert answer.status_code in (404, 409, 500, 503), answer.text
            assert (await client.get("/api/v2/sources/..%2Ffar")).status_code == 404

    run(tmp_path, body)


def test_S9_a_source_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    async def body(captures: Captures, clients: list[httpx.AsyncClient]) -> None:
        made = (await clients[0].post("/api/v2/sources", json=FAR)).json()
        assert [one["about"] for one in made["warnings"]] == ["url"], "whoever makes it is told at once"
        assert "in the environment of every capture" in made["warnings"][0]["text"]
        async with asyncio.timeout(20):
            while not (found := (await clients[1].get("/api/v2/sources/far")).json())["why"]:
                await asyncio.sleep(0.02)
        assert found["state"] in ("starting", "retrying", "waiting", "failed")
        assert "MILLRACE_SECRET_UNSET" in found["why"] or found["state"] != "failed"
        assert found["resolved"] is None or found["resolved"] == "0/0"
        assert found["slot"]["retained_bytes"] is None
        assert "in the environment of every capture" in found["next_step"]

    run(tmp_path, body)


def test_A4_health_and_metrics_of_a_capture(tmp_path: Path) -> None:
    async def body(captures: Captures, clients: list[httpx.AsyncClient]) -> None:
        await clients[0].post("/api/v2/sources", json=FAR)
        assert captures.coordinator is not None
        for n, client in enumerate(clients):
            assert (await client.get("/livez")).status_code == 200
            assert (await client.get("/readyz")).status_code == 200
            text = (await client.get("/metrics")).text
            shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE millrace_")}
            assert shown <= set(CAPTURE_METRICS)
            if n == captures.coordinator:
                assert shown == set(CAPTURE_METRICS)
                assert 'millrace_source_streaming{source="far"} 0.0' in text
        captures.captures[0].stopping = True
        assert problem(await clients[0].get("/readyz"), 503, "not_ready")["detail"] == "stopping"

    run(tmp_path, body)


def test_A9_a_mistake_does_not_end_the_looks_of_a_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    async def look(self: QuarantineCounts, feeds: object, timeout_s: float) -> None:
        looks.append("look")
        if len(looks) == 1:
            raise ValueError("a mistake")

    monkeypatch.setattr(QuarantineCounts, "look", look)
    monkeypatch.setattr(limits, "QUARANTINE_COUNT_S", 0.01)

    async def body(captures: Captures, clients: list[httpx.AsyncClient]) -> None:
        await until(lambda: len(looks) > 2, "more looks after the one that failed")

    with structlog.testing.capture_logs() as lines:
        run(tmp_path, body)
    assert [line["why"] for line in lines if line.get("work") == "count quarantines"] == ["ValueError: a mistake"]


def test_A4_a_capture_that_has_not_started_answers(tmp_path: Path) -> None:
    async def main() -> None:
        capture = Captures(tmp_path, 1).captures[0]
        async with client_of(build(capture, door())) as client:
            assert (await client.get("/livez")).status_code == 200
            problem(await client.get("/readyz"), 503, "not_ready")
            assert "millrace_ready 0.0" in (await client.get("/metrics")).text

    asyncio.run(main())


@pytest.mark.parametrize("route", CAPTURE_ROUTES, ids=lambda route: f"{route.path}-{sorted(route.methods)[0]}")
def test_every_route_is_described_and_once(route: Any) -> None:
    assert route.endpoint.__doc__ or route.path in ("/livez", "/metrics")
    same = [r for r in CAPTURE_ROUTES if (r.path, r.methods) == (route.path, route.methods)]
    assert same == [route]
