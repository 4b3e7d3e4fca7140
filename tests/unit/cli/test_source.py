"""`source create --wait` and `source remove --wait` say what happens and end with the right code [A2]."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from millrace.cli import source
from millrace.cli.main import run

SUPERVISOR = {"pid": 1, "start_time": 0}
Answers = Callable[[str, int], tuple[int, dict[str, Any]]]     # (method, how many GETs before) -> status, body


def state(name: str, *, why: str = "", percent: float | None = None) -> dict[str, Any]:
    copies = [] if percent is None else [
        {"rows": "1000000", "percent": percent, "why": "", "table": "public.a",
         "state": "done" if percent == 100 else "running"}]
    return {"name": "shop", "url": "postgresql://h/db", "state": name, "why": why, "next_step": "ask the doctor",
            "tables": [{}], "copies": copies,
            "warnings": [{"about": "url", "text": "set it"}] if name == "unset" else []}


@contextmanager
def capture(tmp_path: Path, answers: Answers) -> Iterator[str]:
    """A directory of a cluster with one capture that answers so."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            status, body = answers(self.command, asked.count("GET"))
            asked.append(self.command)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        (tmp_path / "run").mkdir()
        (tmp_path / "token").write_text("t")
        child = {"kind": "capture", "pid": 1, "http": f"127.0.0.1:{httpd.server_port}"}
        (tmp_path / "run" / "state.json").write_text(json.dumps({"supervisor": SUPERVISOR, "children": [child]}))
        try:
            yield str(tmp_path)
        finally:
            httpd.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "POLL_S", 0.005)


CREATE = ["source", "create", "shop", "--url", "postgresql://h/db", "--wait"]


def test_A2_wait_tells_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = [state("starting", why="connects"), state("copying", percent=0), state("copying", percent=47),
             state("copying", percent=48), state("streaming", percent=100)]
    with capture(tmp_path, lambda method, n: (201, state("starting")) if method == "POST" else (200, story[n])) as dir_:
        assert run([*CREATE, "--dir", dir_]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "created shop: postgresql://h/db", "shop: starting: connects",
        "shop: copying 1 of 1 tables, 0 %, 1.0 million rows", "shop: copying 1 of 1 tables, 40 %, 1.0 million rows",
        "shop is streaming 1 tables"]


def test_A2_what_is_made_with_a_warning_says_so_and_json_is_the_body(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capture(tmp_path, lambda method, n: (201, state("unset"))) as dir_:
        assert run([*CREATE[:-1], "--dir", dir_]) == 0
        assert capsys.readouterr().out.splitlines() == ["created shop: postgresql://h/db", "warning: url: set it"]
        assert run([*CREATE[:-1], "--dir", dir_, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == state("unset")


@pytest.mark.parametrize(("stuck", "code"), [("failed", 1), ("retrying", 7)])
def test_A2_wait_ends_when_waiting_does_not_help(tmp_path: Path, stuck: str, code: int,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    with capture(tmp_path, lambda method, n: (200, state(stuck, why="no such role"))) as dir_:
        assert run([*CREATE, "--timeout-s", "0.1", "--dir", dir_]) == code
    assert "no such role; ask the doctor" in capsys.readouterr().err


def test_A2_removal_is_waited_for_and_names_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answers(method: str, n: int) -> tuple[int, dict[str, Any]]:
        if method == "DELETE":
            return 202, {"name": "shop", "state": "removing", "left_behind": ["slot millrace_shop: gone"]}
        return (200, state("removing")) if n < 2 else (404, {"error_msg": "no source"})

    with capture(tmp_path, answers) as dir_:
        assert run(["source", "remove", "shop", "--force", "--wait", "--dir", dir_]) == 0
    assert capsys.readouterr().out.splitlines() == ["left behind: slot millrace_shop: gone", "removed shop"]


def test_A2_a_cluster_without_captures_says_how_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    children = [{"kind": "broker", "pid": 1, "http": "h:1"}]
    (tmp_path / "run" / "state.json").write_text(json.dumps({"supervisor": SUPERVISOR, "children": children}))
    assert run(["source", "list", "--dir", str(tmp_path)]) == 6
    assert "--captures 2" in capsys.readouterr().err
