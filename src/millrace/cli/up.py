"""`millrace up | down | status`: a whole cluster on this machine, owned by one supervisor process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from millrace.cli.client import Api, request
from millrace.cli.exits import FAILED, TIMED_OUT, UNHEALTHY, USAGE, CommandFailed, code_of
from millrace.cli.layout import Layout
from millrace.cli.output import Form, console, show, table_of
from millrace.errors import ConfigError, MillraceError
from millrace.ops import config as configuration
from millrace.ops import logging as logs
from millrace.ops import preflight, processes
from millrace.ops.config import Config
from millrace.ops.supervisor import ChildSpec, FailedToStart, Supervisor, write_atomically

READY_S = 60.0
STOP_S = 15.0            # longer than a broker's own grace for a clean stop
BROKER_HTTP_OFFSET = 100
HEADER = "Configuration of this cluster; docs/configuration.md explains the keys. `millrace up` never changes it again."


@dataclass(frozen=True, slots=True)
class Plan:
    """What an `up` will start; made and checked before anything is written."""

    layout: Layout
    text: str                  # of the configuration file
    is_new: bool
    brokers: list[Config]      # one per broker, ports included


def up(
    *,
    brokers: int = 3,
    captures: int = 0,
    dir: str = ".millrace",
    http_port: int = 8300,
    kafka_port: int = 9092,
    store: str | None = None,
    detach: bool = False,
    report_fd: Annotated[int | None, Parameter(show=False)] = None,
) -> None:
    """Start brokers on this machine and look after them until Ctrl-C or `millrace down`.

    Parameters
    ----------
    brokers
        Number of brokers. Broker n serves Kafka at --kafka-port + n, HTTP at --http-port + 100 + n.
    captures
        Number of captures. Captures come with a later version: only 0 is accepted now.
    dir
        Directory of the cluster: configuration, data, logs, state.
    http_port
        First HTTP port of captures; brokers count from 100 above it.
    kafka_port
        First Kafka port; links between brokers count from 100 above it.
    store
        Where metadata lives: sqlite (the default) or etcd://host:port/prefix.
    detach
        Return when all brokers are ready and leave them running.
    """
    report = Report(report_fd)
    try:
        plan = make_plan(brokers=brokers, captures=captures, dir=dir, http_port=http_port, kafka_port=kafka_port,
                         store=store)
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
    supervisor = (state["supervisor"]["pid"], state["supervisor"]["start_time"])
    if not processes.send(*supervisor, signal.SIGTERM):
        console().print(f"{dir}: not running")
        _kill_children(layout)
        return
    processes.send(*supervisor, signal.SIGCONT)
    deadline = time.monotonic() + STOP_S + 10
    while processes.is_running(*supervisor) and time.monotonic() < deadline:
        time.sleep(0.05)
    processes.send(*supervisor, signal.SIGKILL)
    _kill_children(layout)
    console().print(f"{dir}: stopped")


def status(*, dir: str = ".millrace", output: Annotated[Form, Parameter(alias="-o")] = "table",
           check: bool = False) -> None:
    """Show brokers, their pids and their liveness, and who is controller.

    Parameters
    ----------
    dir
        Directory of the cluster.
    output
        Form of the output.
    check
        Exit 10 unless every broker is alive and every partition has a leader and all its replicas.
    """
    layout = Layout(dir)
    found = gather_status(layout)
    columns = ("broker", "pid", "kafka", "http", "liveness", "controller", "leads", "replicas", "restarts")
    rows = [(b["id"], b["pid"], b["address"], b["http"], b["liveness"], "yes" if b["is_controller"] else "",
             b["leaders"], b["replicas"], b["restarts"]) for b in found["brokers"]]
    show(found, output, table_of(columns, rows))
    if not layout.is_up() or (check and not found["healthy"]):
        raise SystemExit(UNHEALTHY)


# -- plan --------------------------------------------------------------------------------------------------------


def make_plan(*, brokers: int, captures: int, dir: str, http_port: int, kafka_port: int, store: str | None) -> Plan:
    """Everything that can be wrong is found here, with nothing written yet."""
    if captures != 0:
        raise CommandFailed(f"--captures: {captures}: captures come with a later version; use --captures 0", USAGE)
    if not 1 <= brokers <= preflight.BROKERS_PER_MACHINE_MAX:
        raise CommandFailed(f"--brokers: {brokers}: use 1 to {preflight.BROKERS_PER_MACHINE_MAX}", USAGE)
    layout = Layout(dir)
    layout.refuse_if_up()
    is_new = not os.path.exists(layout.config)
    text = _new_config(store) if is_new else _read(layout.config)
    configs = []
    for broker in range(brokers):
        environ = {**os.environ, **_overrides(broker, http_port=http_port, kafka_port=kafka_port)}
        config = configuration.parse(text, environ=environ, where=layout.config)
        configs.append(configuration.anchored(config, os.path.abspath(dir)))
    if not is_new and store is not None and _store_url(store) != configs[0].store.url:
        raise ConfigError(f"store.url: {layout.config} says {configs[0].store.url or 'sqlite'!r}, --store says "
                          f"{store!r}; leave --store out, or use another --dir")
    for broker, config in enumerate(configs):
        preflight.check_broker(config, broker)
    return Plan(layout, text, is_new, configs)


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


# -- the supervisor ----------------------------------------------------------------------------------------------


async def _supervise(plan: Plan, report: Report) -> None:
    """Runs until a signal; reports readiness or the error to whoever detached us."""
    layout = plan.layout
    with _writing(layout.dir):
        os.makedirs(layout.run, exist_ok=True)
        os.makedirs(layout.logs, exist_ok=True)
        lock = layout.lock()
        if plan.is_new:
            write_atomically(layout.config, plan.text.encode())
    logs.configure(plan.brokers[0].logging, path=os.path.join(layout.logs, "supervisor.log"))
    stop = asyncio.Event()
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(sig, stop.set)
    supervisor = Supervisor([_child(plan, broker) for broker in range(len(plan.brokers))], state_path=layout.state,
                            about={"cluster_id": str(plan.brokers[0].cluster.id)}, stop_s=STOP_S)
    try:
        if await _started(supervisor, stop):
            if report.fd is None:
                _print_ready(plan)
            report.send(ready=True)
            await stop.wait()
    except (FailedToStart, TimeoutError) as error:
        raise _failure(error) from None
    finally:
        await supervisor.stop()
        os.close(lock)


async def _started(supervisor: Supervisor, stop: asyncio.Event) -> bool:
    """False when a signal came first."""
    start = asyncio.create_task(supervisor.start(READY_S))
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


def _child(plan: Plan, broker: int) -> ChildSpec:
    config = plan.brokers[broker]
    address = f"{config.advertised_host}:{config.broker.kafka_port}"
    http = f"{config.broker.host}:{config.broker.http_port}"
    environ = {
        **os.environ,
        "MILLRACE_BROKER__KAFKA_PORT": str(config.broker.kafka_port),
        "MILLRACE_BROKER__LINK_PORT": str(config.link_port),
        "MILLRACE_BROKER__HTTP_PORT": str(config.broker.http_port),
    }

    async def is_ready() -> bool:
        with contextlib.suppress(OSError):
            return (await asyncio.to_thread(
                request, config.broker.host, config.broker.http_port, "GET", "/readyz", timeout_s=2))[0] == 200
        return False

    return ChildSpec(
        name=f"broker-{broker}",
        command=(sys.executable, "-m", "millrace", "serve", "broker", "--id", str(broker), "--config",
                 os.path.abspath(plan.layout.config)),
        environ=environ,
        stderr_path=os.path.join(plan.layout.logs, f"broker-{broker}.stderr"),
        is_ready=is_ready,
        about={"kind": "broker", "id": broker, "address": address, "http": http,
               "data_dir": config.data_dir(broker)},
    )


def _print_ready(plan: Plan) -> None:
    out = console()
    out.print(table_of(("broker", "kafka", "http"), [
        (n, f"{c.advertised_host}:{c.broker.kafka_port}", f"http://{c.broker.host}:{c.broker.http_port}/metrics")
        for n, c in enumerate(plan.brokers)]))
    out.print(f"ready; bootstrap.servers={_bootstrap(plan)}; Ctrl-C stops")


def _bootstrap(plan: Plan) -> str:
    return ",".join(f"{c.advertised_host}:{c.broker.kafka_port}" for c in plan.brokers)


@dataclass(slots=True)
class Report:
    """The pipe to whoever detached us. It takes one message: ready, or why not."""

    fd: int | None

    def send(self, **message: Any) -> None:
        if self.fd is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self.fd, msgspec.json.encode(message))
            os.close(self.fd)
            self.fd = None


def _detach(plan: Plan) -> None:
    """Starts the supervisor as its own session and returns what it reports."""
    reader, writer = os.pipe()
    first = plan.brokers[0].broker
    command = [sys.executable, "-m", "millrace", "up", "--brokers", str(len(plan.brokers)), "--dir", plan.layout.dir,
               "--http-port", str(first.http_port - BROKER_HTTP_OFFSET), "--kafka-port", str(first.kafka_port),
               "--report-fd", str(writer)]
    if plan.is_new and plan.brokers[0].store.url:
        command += ["--store", plan.brokers[0].store.url]
    subprocess.Popen(command, pass_fds=(writer,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                     stderr=subprocess.DEVNULL, start_new_session=True)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        raw = pipe.read()
    answer: dict[str, Any] = {"error": f"the supervisor ended; see {plan.layout.logs}", "code": FAILED}
    if raw:
        answer = json.loads(raw)
    if "error" in answer:
        raise CommandFailed(answer["error"], answer["code"])
    console().print(f"{plan.layout.dir}: {len(plan.brokers)} brokers ready; bootstrap.servers={_bootstrap(plan)}")


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


# -- status ------------------------------------------------------------------------------------------------------


def gather_status(layout: Layout) -> dict[str, Any]:
    """The supervisor's view of processes joined with the cluster's view of brokers."""
    state = layout.read_state()
    is_up = layout.is_up()
    seen: dict[str, Any] = {}
    if is_up:
        with contextlib.suppress(CommandFailed):
            seen = Api.of(layout.dir).ask("GET", "/api/v2/brokers", timeout_s=3)
    by_id = {item["id"]: item for item in seen.get("items", [])}
    controller = seen.get("controller")
    brokers = [_broker_status(child, by_id.get(child["id"]), controller, is_up=is_up) for child in state["children"]]
    offline, under = seen.get("offline_partitions"), seen.get("under_replicated_partitions")
    return {
        "brokers": brokers,
        "captures": [],
        "controller": controller,
        "coordinator": None,
        "cluster_id": state["cluster_id"],
        "supervisor": {"pid": state["supervisor"]["pid"] if is_up else None},
        "offline_partitions": offline,
        "under_replicated_partitions": under,
        "healthy": controller is not None and all(b["liveness"] == "alive" for b in brokers) and not (offline or under),
    }


def _broker_status(child: dict[str, Any], seen: dict[str, Any] | None, controller: int | None, *,
                   is_up: bool) -> dict[str, Any]:
    alive = is_up and child["pid"] is not None and processes.is_running(child["pid"], child["start_time"])
    if not alive:
        liveness = "dead"
    elif seen is None:
        liveness = "starting"
    else:
        liveness = seen["liveness"]
    return {
        "id": child["id"],
        "pid": child["pid"] if alive else None,
        "address": child["address"],
        "http": child["http"],
        "liveness": liveness,
        "is_controller": alive and child["id"] == controller,
        "incarnation": seen["incarnation"] if seen else None,
        "leaders": seen["leaders"] if seen else None,
        "replicas": seen["replicas"] if seen else None,
        "state": child["state"],
        "restarts": child["restarts"],
        "last_exit": child["last_exit"],
    }
