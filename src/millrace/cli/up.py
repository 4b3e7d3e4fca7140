"""`millrace up | down`: a whole cluster on this machine, owned by one supervisor process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from millrace.cli.client import request, said
from millrace.cli.exits import DENIED, FAILED, NOT_FOUND, TIMED_OUT, USAGE, CommandFailed, code_of
from millrace.cli.layout import Layout
from millrace.cli.output import console, table_of
from millrace.cli.up_spark import make_archive, port_of, spark_child, what_is_missing
from millrace.errors import ConfigError, MillraceError
from millrace.ops import cluster_secret, preflight, processes
from millrace.ops import config as configuration
from millrace.ops import logging as logs
from millrace.ops.config import Config
from millrace.ops.supervisor import ChildSpec, FailedToStart, Supervisor, write_atomically
from millrace.pipeline.server import HOST, remote

STOP_S = 15.0            # longer than a broker's own grace for a clean stop
BROKER_HTTP_OFFSET = 100
PORT_MAX = 65535
CAPTURES_MAX = BROKER_HTTP_OFFSET      # their HTTP ports end where those of brokers begin
LINK_PORT_TRIES = 200
BROKER_DIR = re.compile(r"broker-\d{1,4}")
FIRST_START = {"brokers": 3, "captures": 2, "http_port": 8300, "kafka_port": 9092, "spark": None}
HEADER = "Configuration of this cluster; docs/configuration.md explains the keys. `millrace up` never changes it again."


@dataclass(frozen=True, slots=True)
class Plan:
    """What an `up` will start; made and checked before anything is written."""

    layout: Layout
    text: str                  # of the configuration file
    is_new: bool
    brokers: list[Config]      # one per broker, ports included
    captures: list[Config]     # one per capture
    ports: tuple[int, int]     # first HTTP port, first Kafka port
    spark: bool | None         # as asked for; None: if there are captures and Java
    spark_port: int            # of the Spark Connect server to start; 0: none


def up(
    *,
    brokers: int | None = None,
    captures: int | None = None,
    dir: str = ".millrace",
    http_port: int | None = None,
    kafka_port: int | None = None,
    store: str | None = None,
    spark: bool | None = None,
    detach: bool = False,
    report_fd: Annotated[int | None, Parameter(show=False)] = None,
) -> None:
    """Start brokers and captures on this machine and look after them until Ctrl-C or `millrace down`. Numbers
    and ports that are not given are those of the last start in --dir.

    Parameters
    ----------
    brokers
        Number of brokers; at first 3. Broker n serves Kafka at --kafka-port + n, HTTP at --http-port + 100 + n.
    captures
        Number of captures, the processes that read databases; at first 2. One of them is the coordinator. Capture n
        serves HTTP at --http-port + n.
    dir
        Directory of the cluster: configuration, data, logs, state.
    http_port
        First HTTP port of captures, at first 8300; brokers count from 100, links between captures from 300 above it.
    kafka_port
        First Kafka port, at first 9092; links between brokers count from 100 above it.
    store
        Where metadata lives: sqlite (the default) or etcd://host:port/prefix.
    spark
        Start a Spark Connect server, on which changefeeds and `format("millrace")` run. Nothing else waits for it: it
        may come up later. If neither --spark nor --no-spark was ever given: with captures, where there is Java.
    detach
        Return when brokers and captures are ready and leave them running. What is waited for is said every 10 s; a
        start in which nothing has moved for a minute is given up.
    """
    report = Report(report_fd)
    try:
        last = last_start(Layout(dir))
        plan = make_plan(
            brokers=_first(brokers, last["brokers"]), captures=_first(captures, last["captures"]), dir=dir,
            http_port=_first(http_port, last["http_port"]), kafka_port=_first(kafka_port, last["kafka_port"]),
            store=store, spark=last["spark"] if spark is None else spark)
        if detach:
            _detach(plan)
        else:
            asyncio.run(_supervise(plan, report))
    except (CommandFailed, MillraceError) as error:
        report.send(error=str(error), code=code_of(error))
        raise


def down(*, dir: str = ".millrace") -> None:
    """Stop the cluster in --dir; what does not stop in time is killed."""
    layout = Layout(dir)
    state = layout.read_state()
    try:
        _stop(layout, (state["supervisor"]["pid"], state["supervisor"]["start_time"]))
    except PermissionError:
        raise CommandFailed(f"{dir}: its processes belong to another account; use the one that ran: millrace up",
                            DENIED) from None


def _stop(layout: Layout, supervisor: tuple[int, int]) -> None:
    if not processes.send(*supervisor, signal.SIGTERM):
        console().print(f"{layout.dir}: not running")
        _kill_children(layout)
        return
    processes.send(*supervisor, signal.SIGCONT)
    deadline = time.monotonic() + STOP_S + 10
    while processes.is_running(*supervisor) and time.monotonic() < deadline:
        time.sleep(0.05)
    processes.send(*supervisor, signal.SIGKILL)
    _kill_children(layout)
    console().print(f"{layout.dir}: stopped")


# -- plan --------------------------------------------------------------------------------------------------------


def last_start(layout: Layout) -> dict[str, Any]:
    """What the last `up` in this directory started with: clients and data are where it put them."""
    try:
        state = layout.read_state()
    except CommandFailed as error:
        if error.code != NOT_FOUND:
            raise
        return dict(FIRST_START)
    children = state["children"]
    brokers = [child for child in children if child["kind"] == "broker"]
    captures = [child for child in children if child["kind"] == "capture"]
    return {"brokers": len(brokers), "captures": len(captures), "spark": state.get("spark"),
            "http_port": _port(brokers[0]["http"]) - BROKER_HTTP_OFFSET, "kafka_port": _port(brokers[0]["address"])}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _first(given: int | None, otherwise: int) -> int:
    return otherwise if given is None else given


def make_plan(*, brokers: int, captures: int, dir: str, http_port: int, kafka_port: int, store: str | None,
              spark: bool | None) -> Plan:
    """Everything that can be wrong is found here, with nothing written yet."""
    if not 0 <= captures <= CAPTURES_MAX:
        raise CommandFailed(f"--captures: {captures}: use 0 to {CAPTURES_MAX}", USAGE)
    if not 1 <= brokers <= preflight.BROKERS_PER_MACHINE_MAX:
        raise CommandFailed(f"--brokers: {brokers}: use 1 to {preflight.BROKERS_PER_MACHINE_MAX}", USAGE)
    _check_ports("--kafka-port", kafka_port, configuration.LINK_PORT_OFFSET + brokers)
    _check_ports("--http-port", http_port, max(BROKER_HTTP_OFFSET + brokers, captures))
    layout = Layout(dir)
    layout.refuse_if_up()
    _refuse_fewer(dir, brokers)
    is_new = not os.path.exists(layout.config)
    text = _new_config(store) if is_new else _read(layout.config)

    def configured(overrides: dict[str, str]) -> Config:
        config = configuration.parse(text, environ={**os.environ, **overrides}, where=layout.config)
        return configuration.anchored(config, os.path.abspath(dir))

    configs = [configured(_overrides(n, http_port=http_port, kafka_port=kafka_port)) for n in range(brokers)]
    bootstrap = ",".join(_kafka_address(c) for c in configs)
    wanted = captures > 0 and not _names_a_spark(configs[0])
    starts = wanted and (not what_is_missing() if spark is None else spark)
    spark_port = port_of(configs[0], http_port=http_port) if starts else 0
    links = _link_ports(configs, captures, http_port=http_port, spark_port=spark_port)
    spark_remote = remote(spark_port, token="") if spark_port else ""     # the secret may not be there yet
    readers = [configured(_capture_overrides(http_port + n, link, bootstrap=bootstrap, spark_remote=spark_remote))
               for n, link in enumerate(links)]
    if not is_new and store is not None and _store_url(store) != configs[0].store.url:
        raise ConfigError(f"store.url: {layout.config} says {configs[0].store.url or 'sqlite'!r}, --store says "
                          f"{store!r}; leave --store out, or use another --dir")
    for broker, config in enumerate(configs):
        preflight.check_broker(config, broker)
    for config in readers:
        preflight.check_capture(config)
    return Plan(layout, text, is_new, configs, readers, (http_port, kafka_port), spark, spark_port)


def _refuse_fewer(dir: str, brokers: int) -> None:
    """Brokers that are left out keep their replicas: what they led, or alone can lead, would stay without a leader."""
    names = os.listdir(dir) if os.path.isdir(dir) else []
    known = [int(name.removeprefix("broker-")) for name in names if BROKER_DIR.fullmatch(name)]
    left_out = sorted(broker for broker in known if broker >= brokers)
    if left_out:
        there = ", ".join(f"broker-{broker}" for broker in left_out)
        raise CommandFailed(
            f"--brokers: {brokers}: {dir} has the data of {max(known) + 1} brokers, and partitions of those left out "
            f"would have no leader; leave --brokers out or say --brokers {max(known) + 1}. Of brokers that were "
            f"removed (`broker remove`) move the directories away: {there}", USAGE)


def _check_ports(flag: str, first: int, count: int) -> None:
    """Ports are counted up from the flag's: what is out of range is the flag, not the setting made from it."""
    most = PORT_MAX - count + 1
    if not 1 <= first <= most:
        raise CommandFailed(f"{flag}: {first}: use 1 to {most}, as ports up to {count - 1} above it are used", USAGE)


def _new_config(store: str | None) -> str:
    tree: dict[str, Any] = {"cluster": {"id": str(uuid.uuid4()), "dir": "."}}
    if url := _store_url(store or "sqlite"):
        tree["store"] = {"url": url}
    return configuration.dump(tree, HEADER)


def _store_url(store: str) -> str:
    return "" if store == "sqlite" else store


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def _overrides(broker: int, *, http_port: int, kafka_port: int) -> dict[str, str]:
    return {
        "MILLRACE_BROKER__KAFKA_PORT": str(kafka_port + broker),
        "MILLRACE_BROKER__LINK_PORT": str(kafka_port + configuration.LINK_PORT_OFFSET + broker),
        "MILLRACE_BROKER__HTTP_PORT": str(http_port + BROKER_HTTP_OFFSET + broker),
    }


def _names_a_spark(config: Config) -> bool:
    return bool(config.spark.remote or config.spark.master)


def _link_ports(brokers: list[Config], captures: int, *, http_port: int, spark_port: int) -> list[int]:
    """Free ones: captures find each other's in their leases."""
    config = brokers[0].capture
    first = config.link_port or http_port + configuration.CAPTURE_LINK_PORT_OFFSET
    first = min(first, PORT_MAX - captures - LINK_PORT_TRIES)
    taken = {port for one in brokers for port in (one.broker.kafka_port, one.link_port, one.broker.http_port)}
    taken |= {spark_port, *range(http_port, http_port + captures)}
    found: list[int] = []
    for port in range(first, first + captures + LINK_PORT_TRIES):
        if len(found) < captures and port not in taken and preflight.is_free(config.host, port):
            found.append(port)
    if len(found) < captures:
        raise ConfigError(f"capture.link_port: no {captures} free ports from {first} on; set it to another")
    return found


def _capture_overrides(http_port: int, link_port: int, *, bootstrap: str, spark_remote: str) -> dict[str, str]:
    overrides = {"MILLRACE_CAPTURE__HTTP_PORT": str(http_port), "MILLRACE_CAPTURE__LINK_PORT": str(link_port),
                 "MILLRACE_CAPTURE__BOOTSTRAP": bootstrap}
    return {**overrides, "MILLRACE_SPARK__REMOTE": spark_remote} if spark_remote else overrides


def _kafka_address(config: Config) -> str:
    return f"{config.advertised_host}:{config.broker.kafka_port}"


# -- the supervisor ----------------------------------------------------------------------------------------------


async def _supervise(plan: Plan, report: Report) -> None:
    """Runs until a signal; reports readiness or the error to whoever detached us."""
    layout = plan.layout
    with _writing(layout.dir):
        layout.make()
        lock = layout.lock()
        if plan.is_new:
            write_atomically(layout.config, plan.text.encode())
        cluster_secret.create(plan.brokers[0].secret_file)
    token = cluster_secret.load(plan.brokers[0].secret_file).token(cluster_secret.HTTP)
    with _writing(layout.dir):
        write_atomically(layout.token_file, f"{token}\n".encode())
    logs.configure(plan.brokers[0].logging, path=os.path.join(layout.logs, "supervisor.log"))
    stop = asyncio.Event()
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(sig, stop.set)
    children = [_broker_child(plan, n) for n in range(len(plan.brokers))]
    children += [_capture_child(plan, n) for n in range(len(plan.captures))]
    if plan.spark_port:
        children.append(spark_child(layout, plan.spark_port))
    supervisor = Supervisor(children, state_path=layout.state,
                            about={"cluster_id": str(plan.brokers[0].cluster.id), "spark": plan.spark},
                            stop_s=STOP_S)
    archive = asyncio.create_task(make_archive(supervisor, plan.brokers[0]))
    try:
        if await _started(supervisor, stop, report.say):
            if report.fd is None:
                _print_ready(plan)
            report.send(ready=True)
            await stop.wait()
    except (FailedToStart, TimeoutError) as error:
        raise _failure(error) from None
    finally:
        archive.cancel()
        await asyncio.gather(archive, return_exceptions=True)
        await supervisor.stop()
        os.close(lock)


async def _started(supervisor: Supervisor, stop: asyncio.Event, say: Callable[[str], None]) -> bool:
    """False when a signal came first."""
    start = asyncio.create_task(supervisor.start(say=say))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([start, stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in (start, stopped):
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    if stop.is_set():
        return False
    await start
    return True


def _failure(error: FailedToStart | TimeoutError) -> CommandFailed:
    if isinstance(error, TimeoutError):
        return CommandFailed(str(error), TIMED_OUT)
    if error.status == USAGE:   # the child's own line names key and remedy
        return CommandFailed(error.line.removeprefix("millrace: "), USAGE)
    return CommandFailed(str(error), FAILED)


def _broker_child(plan: Plan, n: int) -> ChildSpec:
    config = plan.brokers[n]
    overrides = {
        "MILLRACE_BROKER__KAFKA_PORT": str(config.broker.kafka_port),
        "MILLRACE_BROKER__LINK_PORT": str(config.link_port),
        "MILLRACE_BROKER__HTTP_PORT": str(config.broker.http_port),
    }
    return _child(plan, "broker", n, (config.broker.host, config.broker.http_port), overrides,
                  {"address": _kafka_address(config), "data_dir": config.data_dir(n)})


def _capture_child(plan: Plan, n: int) -> ChildSpec:
    config = plan.captures[n].capture
    token = cluster_secret.load(plan.brokers[0].secret_file).token(cluster_secret.SPARK)
    overrides = _capture_overrides(config.http_port, config.link_port, bootstrap=",".join(config.bootstrap),
                                   spark_remote=remote(plan.spark_port, token) if plan.spark_port else "")
    return _child(plan, "capture", n, (config.host, config.http_port), overrides,
                  {"address": f"{plan.captures[n].capture_host}:{config.http_port}"})


def _child(plan: Plan, kind: str, n: int, http: tuple[str, int], overrides: dict[str, str],
           about: dict[str, Any]) -> ChildSpec:
    token = cluster_secret.load(plan.brokers[0].secret_file).token(cluster_secret.HTTP)

    async def not_ready() -> str:
        try:
            status, answer = await asyncio.to_thread(request, *http, "GET", "/readyz", token=token, timeout_s=2)
        except OSError as error:
            return f"{http[0]}:{http[1]}: {error}"
        return "" if status == 200 else said(status, answer)

    return ChildSpec(
        name=f"{kind}-{n}",
        command=(sys.executable, "-m", "millrace", "serve", kind, "--id", str(n), "--config",
                 os.path.abspath(plan.layout.config)),
        environ={**os.environ, **overrides},
        stderr_path=os.path.join(plan.layout.logs, f"{kind}-{n}.stderr"),
        not_ready=not_ready,
        about={"kind": kind, "id": n, "http": f"{http[0]}:{http[1]}", **about},
    )


def _print_ready(plan: Plan) -> None:
    out = console()
    out.print(table_of(("broker", "kafka", "http"), [
        (n, f"{c.advertised_host}:{c.broker.kafka_port}", f"http://{c.broker.host}:{c.broker.http_port}/metrics")
        for n, c in enumerate(plan.brokers)]))
    if plan.captures:
        out.print(table_of(("capture", "http"), [
            (n, f"http://{c.capture.host}:{c.capture.http_port}/api/v2/sources") for n, c in enumerate(plan.captures)]))
    _say_spark(plan)
    out.print(f"ready; bootstrap.servers={_bootstrap(plan)}; Ctrl-C stops")


def _say_spark(plan: Plan) -> None:
    """It may still be starting; what keeps it from starting is said."""
    if not plan.captures or plan.spark is False or _names_a_spark(plan.brokers[0]):
        return
    missing = what_is_missing()
    console().print(f"Spark: {missing}; until then changefeeds wait" if missing
                    else f"Spark Connect: sc://{HOST}:{plan.spark_port}")


def _bootstrap(plan: Plan) -> str:
    return ",".join(_kafka_address(c) for c in plan.brokers)


@dataclass(slots=True)
class Report:
    """What a start says to people: over the pipe to whoever detached us, a message a line, else to standard error.
    The last message over the pipe is: ready, or why not."""

    fd: int | None

    def say(self, text: str) -> None:
        if self.fd is None:
            print(f"millrace: {text}", file=sys.stderr)
        else:
            self._write({"says": text})

    def send(self, **message: Any) -> None:
        if self.fd is not None:
            self._write(message)
            os.close(self.fd)
            self.fd = None

    def _write(self, message: dict[str, Any]) -> None:
        assert self.fd is not None
        with contextlib.suppress(BrokenPipeError):
            os.write(self.fd, msgspec.json.encode(message) + b"\n")


def _detach(plan: Plan) -> None:
    """Starts the supervisor as its own session and returns what it reports."""
    reader, writer = os.pipe()
    http_port, kafka_port = plan.ports
    command = [sys.executable, "-m", "millrace", "up", "--brokers", str(len(plan.brokers)),
               "--captures", str(len(plan.captures)), "--dir", plan.layout.dir, "--http-port", str(http_port),
               "--kafka-port", str(kafka_port), "--report-fd", str(writer)]
    if plan.spark is not None:
        command.append("--spark" if plan.spark else "--no-spark")
    if plan.is_new and plan.brokers[0].store.url:
        command += ["--store", plan.brokers[0].store.url]
    subprocess.Popen(command, pass_fds=(writer,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL, start_new_session=True)
    os.close(writer)
    answer: dict[str, Any] = {"error": f"the supervisor ended; see {plan.layout.logs}", "code": FAILED}
    with os.fdopen(reader, "rb") as pipe:
        for line in pipe:
            message = json.loads(line)
            if "says" in message:
                print(f"millrace: {message['says']}", file=sys.stderr, flush=True)
            else:
                answer = message
    if "error" in answer:
        raise CommandFailed(answer["error"], answer["code"])
    _say_spark(plan)
    captures = f" and {len(plan.captures)} captures" if plan.captures else ""
    console().print(f"{plan.layout.dir}: {len(plan.brokers)} brokers{captures} ready; "
                    f"bootstrap.servers={_bootstrap(plan)}")


@contextlib.contextmanager
def _writing(dir: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cluster.dir: {dir}: {error.strerror}; free space or choose another --dir") from None


def _kill_children(layout: Layout) -> None:
    """What a killed supervisor may have left for a moment; waits until they are gone."""
    for child in layout.read_state()["children"]:
        if child["pid"] and processes.send(child["pid"], child["start_time"], signal.SIGKILL):
            while processes.is_running(child["pid"], child["start_time"]):
                time.sleep(0.02)
