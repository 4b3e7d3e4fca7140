"""Commands end with the right code and one line [A2]; what they print is what the API said."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from millrace import errors
from millrace.cli import bench_log, exits
from millrace.cli.client import Api, request
from millrace.cli.exits import CommandFailed, code_of
from millrace.cli.layout import Layout
from millrace.cli.main import run
from millrace.cli.output import show, table_of
from millrace.cli.up import FIRST_START, last_start
from millrace.ops.cluster_secret import HTTP
from support_secret import SECRET, write_secret

SUPERVISOR = {"pid": 1, "start_time": 0}


def run_to_exit(arguments: list[str]) -> int:
    """Commands that show a result end by SystemExit where that is no error of theirs."""
    try:
        return run(arguments)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize(("error", "code"), [
    (errors.ConfigError("x"), 2), (errors.InvalidTopicName("x"), 2), (errors.UnknownTopicOrPartition("x"), 3),
    (errors.TopicExists("x"), 4), (errors.Unreachable("x"), 6), (errors.TimedOut("x"), 7),
    (errors.MillraceError("x"), 1), (CommandFailed("x", 5), 5), (ValueError("x"), 1),
])
def test_A2_every_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert code_of(error) == code
    assert code in exits.MEANING


@pytest.mark.parametrize("arguments", [
    ["nonsense"], ["up", "--brokers", "many"], ["up", "--unknown"], ["topic", "create"], ["status", "-o", "xml"],
    ["group", "describe"],
    ["source", "create", "shop"], ["source", "create", "shop", "--url"], ["source", "get"], ["table", "copy", "a.b"],
    ["doctor"], ["up", "--captures", "-1"], ["topic", "describe", ""], ["topic", "delete", ""], ["source", "get", ""],
    ["topic", "elect", "orders", "0"],
    ["source", "remove", ""], ["table", "list", "--source", ""], ["up", "--kafka-port", "70000"],
    ["source", "create", "shop", "--url", "postgresql://u:geheim@h/d"],
])
def test_A2_wrong_use_is_one_line_and_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("millrace: ")
    assert err.count("\n") == 1
    assert "geheim" not in err


@pytest.mark.parametrize("arguments", [
    ["--help"], ["up", "--help"], ["topic", "--help"], ["source", "create", "--help"], ["doctor", "--help"],
    ["--version"],
])
def test_help_is_there(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(("url", "code", "says"), [
    ("postgresql://u@127.0.0.1:1/db", exits.UNREACHABLE, "refused"),
    ("notaurl", exits.USAGE, "no PostgreSQL URL; write postgresql://user@host:port/database"),
    ("${env:MILLRACE_TEST_UNSET}", exits.USAGE, "${env:MILLRACE_TEST_UNSET}: the environment variable is not set"),
])
def test_A2_doctor_tells_an_ill_database_from_one_it_could_not_ask(
    capsys: pytest.CaptureFixture[str], url: str, code: int, says: str
) -> None:
    assert run_to_exit(["doctor", url]) == code
    out, err = capsys.readouterr()
    assert says in out + err


def test_json_is_the_body_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    body = {"total": 1, "items": [{"name": "ü", "hw": "12345678901234567890"}]}
    show(body, "json", table_of((), ()))
    assert json.loads(capsys.readouterr().out) == body
    show(body, "yaml", table_of((), ()))
    assert "hw: '12345678901234567890'" in capsys.readouterr().out


def test_A2_what_a_name_holds_breaks_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    show({}, "table", table_of(("table", "n"), [('public."a\nb\x1b[2J"', 1), ("[red]x[/red]", None)]))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["table", "n"], ['public."a\\nb\\x1b[2J"', "1"], ["[red]x[/red]", "-"]]


def test_A2_a_group_is_shown_with_how_far_it_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def partition(n: int, hw: str | None) -> dict[str, object]:
        return {"partition": n, "leader": 1, "replicas": [{"broker": 0, "hw": "3"}, {"broker": 1, "hw": hw}]}

    answers = {
        "/api/v2/groups/g": {"group": "g", "state": "Stable", "coordinator": 2, "members": [
            {"client_id": "c", "host": "h", "instance_id": None, "member_id": "m"}], "offsets": [
            {"topic": topic, "partition": n, "offset": "7"} for topic, n in (("t", 0), ("t", 1), ("gone", 0))]},
        "/api/v2/topics/t": {"partitions": [partition(0, "12"), partition(1, None)]}}

    def ask(self: Api, method: str, path: str) -> object:
        if path not in answers:
            raise CommandFailed("no such topic", exits.NOT_FOUND)
        return answers[path]

    monkeypatch.setattr(Api, "ask", ask)
    monkeypatch.setattr(Api, "of", classmethod(lambda cls, where: cls([], where=where, token="t")))
    assert run(["group", "describe", "g", "--dir", str(tmp_path)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == [["client", "host", "member"], ["c", "h", "m"], ["topic", "partition", "offset", "end", "lag"],
                     ["t", "0", "7", "12", "5"], ["t", "1", "7", "-", "-"], ["gone", "0", "7", "-", "-"]]


def test_a_directory_without_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="start one with: millrace up") as caught:
        Layout(str(tmp_path)).read_state()
    assert caught.value.code == exits.NOT_FOUND
    assert not Layout(str(tmp_path)).is_up()


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[]", '{"children": []}', '{"supervisor": {}, "children": []}', "\udcff"])
@pytest.mark.parametrize("command", [["status"], ["down"], ["up"], ["topic", "list"], ["source", "list"]])
def test_A2_a_torn_state_file_is_one_line_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], text: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "state.json").write_bytes(text.encode(errors="surrogateescape"))
    assert run([*command, "--dir", str(tmp_path)]) == exits.USAGE
    err = capsys.readouterr().err
    assert "state.json: cannot be understood" in err
    assert "remove it" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [["status"], ["down"], ["up"], ["topic", "list"], ["source", "list"]])
def test_A2_a_file_as_directory_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (tmp_path / "file").touch()
    assert run([*command, "--dir", str(tmp_path / "file")]) == exits.USAGE
    err = capsys.readouterr().err
    assert "file: not a directory; name another with --dir" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("arguments", "says"), [
    (["--kafka-port", "70000"], "--kafka-port: 70000: use 1 to"), (["--kafka-port", "0"], "--kafka-port: 0: use 1 to"),
    (["--kafka-port", "65500"], "--kafka-port: 65500: use 1 to 65433, as ports up to 102 above it are used"),
    (["--http-port", "65500"], "--http-port: 65500: use 1 to 65433"),
])
def test_A2_a_port_out_of_range_names_the_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert run(["up", "--dir", str(tmp_path / "new"), *arguments]) == exits.USAGE
    assert says in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_one_supervisor_per_directory(tmp_path: Path) -> None:
    import os

    layout = Layout(str(tmp_path))
    (tmp_path / "run").mkdir()
    first = layout.lock()
    with pytest.raises(CommandFailed) as caught:
        layout.lock()
    assert caught.value.code == exits.CONFLICT
    os.close(first)
    os.close(layout.lock())


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = int(self.path.strip("/"))
        body = json.dumps({"error_code": "c", "error_msg": "why"} if status >= 300 else {"n": 1}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/problem+json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    with HTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield "127.0.0.1", httpd.server_port
        httpd.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "code"), [
    (400, 2), (404, 3), (409, 4), (401, 5), (403, 5), (504, 7), (500, 1), (307, 1)])
def test_A2_refusals_of_the_api_become_exit_codes(server: tuple[str, int], status: int, code: int) -> None:
    with pytest.raises(CommandFailed, match="why") as caught:
        Api([server], where="here", token="t").ask("GET", f"/{status}")
    assert caught.value.code == code


def test_the_next_broker_is_asked_when_one_is_gone(server: tuple[str, int]) -> None:
    gone = ("127.0.0.1", 1)
    assert Api([gone, server], where="here", token="t").ask("GET", "/200") == {"n": 1}
    for addresses, why in (([gone], "no broker answers"), ([server, gone], "^why; try again later"),
                           ([], "here: stopped; start it with")):
        with pytest.raises(CommandFailed, match=why) as caught:
            Api(addresses, where="here", token="t").ask("GET", "/503")
        assert caught.value.code == exits.UNREACHABLE
    with pytest.raises(OSError, match="refused"):
        request(*gone, "GET", "/", token="t")


def test_L27_the_floor_and_the_report_are_made_from_measurements() -> None:
    floor = bench_log.floor(4096, sync=False, seconds=0.05)
    assert floor.mb_per_s > 0
    assert floor.chunk_ms_p50 <= floor.chunk_ms_p99
    result = bench_log.Result(bench_log.Case(100, 3, "group"), 10, 1.0, 10.0, 0.001, 0, 1.5, 2.5, 3.5, 4.5, 5.5, 60.0,
                              0.1, floor)
    text = bench_log.render({"cores": 2}, [result], quick=True)
    assert "| 100 B | 3 | group | 10 |" in text
    assert text.count("|\n") >= 3
    assert "disturbed" not in text
    neighbours = dataclasses.replace(result, others_cpu_cores=1.5)
    assert "1 of 1 cases were disturbed" in bench_log.render({"cores": 2}, [neighbours], quick=True)


def test_L27_every_case_is_measured() -> None:
    assert len(bench_log.cases(quick=False)) == 8
    assert {c.flush for c in bench_log.cases(quick=False)} == {"group", "os"}


def test_quantiles() -> None:
    values = [float(n) for n in range(1, 101)]
    assert bench_log.quantile(values, 0.5) == 51
    assert bench_log.quantile(values, 0.99) == 100
    assert bench_log.quantile([7.0], 0.99) == 7


def test_A2_a_second_up_starts_what_the_last_one_did_on_the_same_ports(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    assert last_start(layout) == FIRST_START
    (tmp_path / "run").mkdir()
    children = [{"kind": "broker", "address": "h:19092", "http": "127.0.0.1:18400"},
                {"kind": "capture", "address": "h:18300", "http": "127.0.0.1:18300"},
                {"kind": "spark", "address": "sc://127.0.0.1:18500"}]
    state = {"supervisor": SUPERVISOR, "children": children, "spark": False}
    (tmp_path / "run" / "state.json").write_text(json.dumps(state))
    assert last_start(layout) == {
        "brokers": 1, "captures": 1, "http_port": 18300, "kafka_port": 19092, "spark": False}


def test_A10_a_command_finds_the_token_of_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_TOKEN", "from the environment")
    assert Layout(str(tmp_path)).read_token() == "from the environment"
    (tmp_path / "token").write_text("from the file\n")
    assert Layout(str(tmp_path)).read_token() == "from the file"


def test_A10_without_a_token_nothing_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    children = [{"kind": "broker", "pid": 1, "http": "127.0.0.1:1"}]
    (tmp_path / "run" / "state.json").write_text(json.dumps({"supervisor": SUPERVISOR, "children": children}))
    assert run(["topic", "list", "--dir", str(tmp_path)]) == exits.DENIED
    assert "MILLRACE_TOKEN" in capsys.readouterr().err


def test_A10_the_token_is_printed_for_those_who_have_the_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "millrace.yaml"
    config.write_text("cluster: {dir: ., secret_file: elsewhere}\n")
    write_secret(tmp_path / "elsewhere")
    for where in (["--dir", str(tmp_path)], ["--config", str(config)]):
        assert run(["token", *where]) == 0
        assert capsys.readouterr().out == f"{SECRET.token(HTTP)}\n"
    assert run(["token", "--dir", str(tmp_path / "none")]) == exits.NOT_FOUND
    (tmp_path / "elsewhere").chmod(0o644)
    assert run(["token", "--dir", str(tmp_path)]) == exits.USAGE
    assert "chmod 600" in capsys.readouterr().err


def test_A10_what_up_makes_is_for_its_account_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        new, old, shared = (Layout(str(tmp_path / name)) for name in ("new", "old", "shared"))
        for layout in (old, shared):                       # as an earlier version left them
            for name in ("store", "broker-0", "work"):
                (Path(layout.dir) / name).mkdir(parents=True)
        Path(old.config).write_text("")
        for layout in (new, old, shared):
            layout.make()
    finally:
        os.umask(before)

    def modes(layout: Layout) -> dict[str, int]:
        return {path.name: path.stat().st_mode & 0o777 for path in (Path(layout.dir), *Path(layout.dir).iterdir())}

    closed = dict.fromkeys(("run", "logs", "secrets"), 0o700)
    assert modes(new) == {"new": 0o700, **closed}
    assert modes(old) == {"old": 0o700, **closed, "store": 0o700, "broker-0": 0o700, "work": 0o755,
                          "millrace.yaml": 0o600}
    assert modes(shared) == {"shared": 0o755, **closed, "store": 0o700, "broker-0": 0o700, "work": 0o755}
