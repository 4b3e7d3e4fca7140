"""Spark beside a cluster of `millrace up`: its Connect server as a child that nobody waits for [P8].

In: the plan of an `up`. Out: the child, and later, at the lowest priority, the class archive that makes its next start
faster. Promise: whatever is wrong with Spark or Java is said, and keeps neither brokers nor captures from starting.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from millrace.cli.layout import Layout
from millrace.errors import ConfigError
from millrace.ops.config import Config
from millrace.ops.logging import get_logger
from millrace.ops.processes import SUPERVISOR_PID
from millrace.ops.supervisor import RUNNING, ChildSpec, Supervisor
from millrace.pipeline import archive, server
from millrace.pipeline.jvm import class_path, find_java

PORT_OFFSET = 200              # from the first HTTP port: behind captures and brokers
BACKOFF_MAX_S = 60.0           # without Java it cannot start, and a try costs half a second of CPU
ARCHIVE_AFTER_S = 30.0         # a cluster of a test is gone by then, that of a person is quiet


def port_of(config: Config, *, http_port: int) -> int:
    return config.spark.port or server.free_port(http_port + PORT_OFFSET)


def what_is_missing() -> str:
    """Why Spark cannot start here, with the remedy; nothing if it can."""
    try:
        find_java()
        class_path()
    except ConfigError as error:
        return str(error)
    return ""


def spark_child(layout: Layout, port: int) -> ChildSpec:
    async def not_ready() -> str:
        return "" if await asyncio.to_thread(server.answers, server.HOST, port) else "does not answer"

    return ChildSpec(
        name="spark",
        command=(sys.executable, "-m", "millrace", "serve", "spark", "--config", os.path.abspath(layout.config)),
        environ={**os.environ, "MILLRACE_SPARK__PORT": str(port)},
        stderr_path=os.path.join(layout.logs, "spark.stderr"),
        not_ready=not_ready,
        about={"kind": "spark", "id": 0, "address": f"sc://{server.HOST}:{port}"},
        needed=False,
        backoff_max_s=BACKOFF_MAX_S,
    )


async def make_archive(supervisor: Supervisor, config: Config) -> None:
    """Once per Java and Spark, when the server has run for a while."""
    await asyncio.sleep(ARCHIVE_AFTER_S)
    spark = next((child for child in supervisor.children if child.spec.name == "spark"), None)
    if spark is None or spark.state != RUNNING or not config.spark.class_archive:
        return
    if await asyncio.to_thread(lambda: archive.find(find_java(), class_path())):
        return
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "millrace.pipeline.archive_maker", stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, SUPERVISOR_PID: str(os.getpid())})
    try:
        _, said = await process.communicate()
        get_logger("supervisor").info("class archive of Spark", status=process.returncode,
                                      said=said.decode(errors="replace").strip()[-500:])
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
