"""The Spark Connect server of this machine: `millrace serve spark` becomes it.

In: the configuration. Out: this process, replaced by a JVM that serves Spark Connect at `spark.port`. Promises: its pid
is the JVM's, so whoever kills, watches or outlives it means the JVM itself; it dies with its supervisor and its Python
workers die with it; all it writes is below `<cluster.dir>/spark`, except its log beside the other logs. Nothing else
waits for it: brokers and captures run without [P8]. Whoever may use it runs code as this account: so it asks for a
token, its other ports for a secret of their own, and no other account reads its files [A10].

    spark/java.args  spark.properties  log4j2.properties  pools.xml      made anew at each start
    spark/tmp  local  artifacts  warehouse                               emptied at each start
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import NAMESPACE_URL, uuid5

import msgspec

from millrace.errors import ConfigError
from millrace.ops import processes
from millrace.ops.config import Config
from millrace.pipeline import archive, settings
from millrace.pipeline.jvm import MODULE_OPTIONS, SUBMIT, Java, argument_file, class_path, find_java

MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
SESSION_ID = uuid5(NAMESPACE_URL, "millrace/rounds")   # one for all captures: each session has its own Python processes
SESSION_TIMEOUT = "3650d"         # of that one: it is used again by captures that come back
DETACHED_TIMEOUT = "60s"          # a job whose client is gone: its results reach nobody
SCRATCH = ("tmp", "local", "artifacts", "warehouse")
HOST = "127.0.0.1"
CLIENT_HOST = "localhost"         # by this name, and no other, pyspark sends a token without TLS
PLAN = "MILLRACE_SPARK_PLAN"      # by the environment, which other accounts do not see
PORT_TRIES = 200
PROBE_S = 2.0
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))   # preface, empty SETTINGS
_SETTINGS_FRAME = 4


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """Everything the server is told. `token`: what clients must have. `archive_to`: write the class archive at the end
    of this life."""

    dir: str
    port: int
    master: str
    token: str = field(repr=False)
    memory: str = "1g"
    compiler: str = "quick"
    class_archive: bool = True
    archive_to: str = ""
    ui_port: int = 0
    conf: tuple[str, ...] = ()
    log_path: str = ""
    log_bytes: int = 16 << 20
    log_files: int = 4
    secret_file: str = ""          # the cluster's, for the data source


def plan_of(config: Config, token: str) -> ServerPlan:
    spark, directory = config.spark, os.path.join(config.cluster.dir, "spark")
    log_path = os.path.join(directory if config.logs_dir == "-" else config.logs_dir, "spark.log")
    return ServerPlan(
        dir=directory, port=spark.port, master=settings.local_master(spark.cores), token=token, memory=spark.memory,
        compiler=spark.compiler, class_archive=spark.class_archive, ui_port=spark.ui_port, conf=spark.conf,
        secret_file=os.path.abspath(config.secret_file), log_path=log_path, log_bytes=config.logging.file_bytes_max,
        log_files=config.logging.files_kept,
    )


def become(plan: ServerPlan) -> None:
    """Replaces this process. What the kernel was told about its parent's death holds on."""
    command = prepare(plan, find_java())
    os.chdir(plan.dir)                            # Spark makes a directory `artifacts` wherever it stands
    os.execve(command[0], command, environment(dict(os.environ), plan.secret_file))   # noqa: S606 - a list of our own


def start(plan: ServerPlan, *, stderr_path: str, environ: Mapping[str, str] = os.environ) -> subprocess.Popen[bytes]:
    """The same as a child of this process, which it does not outlive."""
    me = [sys.executable, "-m", "millrace.pipeline.server"]
    told = {processes.SUPERVISOR_PID: str(os.getpid()), PLAN: msgspec.json.encode(plan).decode()}
    with open(stderr_path, "ab") as stderr:
        return subprocess.Popen(me, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
                                env={**environ, **told})


def environment(environ: dict[str, str], secret_file: str = "") -> dict[str, str]:
    """What the JVM hands on to its Python workers."""
    for name in ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS",   # another Spark's
                 "SPARK_CONNECT_AUTHENTICATE_TOKEN", PLAN):
        environ.pop(name, None)
    if secret_file:                               # where the data source finds it, not what it holds
        environ.setdefault("MILLRACE_SECRET_FILE", secret_file)
    return {**environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
            "OPENBLAS_NUM_THREADS": "1", "SPARK_LOCAL_IP": HOST}


def prepare(plan: ServerPlan, java: Java) -> list[str]:
    """Writes the files of one start; returns the command."""
    os.umask(0o077)                               # for what the JVM and its workers write, too
    os.makedirs(plan.dir, exist_ok=True)
    os.chmod(plan.dir, stat.S_IRWXU)
    for name in SCRATCH:                          # what a killed server left
        shutil.rmtree(os.path.join(plan.dir, name), ignore_errors=True)
        os.makedirs(os.path.join(plan.dir, name))
    os.makedirs(os.path.dirname(plan.log_path), exist_ok=True)
    path = class_path()
    _write(plan, "pools.xml", settings.POOLS)
    _write(plan, "log4j2.properties", settings.LOGGING.format(
        path=os.path.abspath(plan.log_path), file_bytes=plan.log_bytes, files=plan.log_files))
    _write(plan, "spark.properties", settings.properties(spark_settings(plan)))
    _write(plan, "java.args", argument_file(["-cp", path, *java_options(plan, java, path)]))
    return [java.path, "@" + _at(plan, "java.args"), SUBMIT, "--class", MAIN, "--name", "millrace",
            "--properties-file", _at(plan, "spark.properties"), "spark-internal"]


def spark_settings(plan: ServerPlan) -> dict[str, str]:
    return {
        "spark.master": plan.master,
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(plan.port),
        "spark.connect.authenticate.token": plan.token,
        **({"spark.authenticate": "true"} if plan.master.startswith("local") else {}),   # its block manager and RPC
        "spark.connect.session.manager.defaultSessionTimeout": SESSION_TIMEOUT,
        "spark.connect.execute.manager.detachedTimeout": DETACHED_TIMEOUT,
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        **settings.common(ui_port=plan.ui_port, pools_path=_at(plan, "pools.xml"), local_dir=_at(plan, "local"),
                          warehouse_dir=_at(plan, "warehouse")),
        **settings.own(plan.conf),
    }


def java_options(plan: ServerPlan, java: Java, path: str) -> list[str]:
    options = [f"-Xmx{plan.memory}", *MODULE_OPTIONS, f"-Djava.io.tmpdir={_at(plan, 'tmp')}",
               f"-Dlog4j2.configurationFile=file:{_at(plan, 'log4j2.properties')}",
               "-XX:+UseSerialGC",                # rows are not in its heap; one collector thread is enough
               "-XX:-UsePerfData",                # no files in /tmp
               "-XX:+ExitOnOutOfMemoryError"]     # a JVM out of memory half works: better restarted
    if plan.compiler == "quick":
        options.append("-XX:TieredStopAtLevel=1")
    if plan.archive_to:
        options += [f"-XX:ArchiveClassesAtExit={plan.archive_to}", *archive.QUIET]
    elif plan.class_archive and (found := archive.find(java, path)):
        options += [f"-XX:SharedArchiveFile={found}", "-Xshare:auto", *archive.QUIET]
    return options


def remote(port: int, token: str) -> str:
    """What captures have as `spark.remote`."""
    return f"{own_session(port, token)};user_id=millrace;session_id={SESSION_ID}"


def own_session(port: int, token: str) -> str:
    """For everybody else: a session of one's own."""
    return f"sc://{CLIENT_HOST}:{port}/;token={token}"


def free_port(near: int = 0) -> int:
    """A port of this machine's own address that nobody listens on; the first at or above `near`, if that is given."""
    for port in range(near, min(near + PORT_TRIES, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                probe.listen(1)              # two sockets may share an address until one of them listens
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise ConfigError(f"spark.port: no free port from {near} to {near + PORT_TRIES}; set it")


def answers(host: str, port: int, timeout_s: float = PROBE_S) -> bool:
    """Whether an HTTP/2 server, as Spark Connect is one, greets back. A listening socket alone proves nothing: the
    kernel accepts for a process that is stopped."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as conn:
            conn.settimeout(timeout_s)
            conn.sendall(_HTTP2_HELLO)
            head = conn.recv(9, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == 9 and head[3] == _SETTINGS_FRAME


def _at(plan: ServerPlan, name: str) -> str:
    return os.path.join(os.path.abspath(plan.dir), name)


def _write(plan: ServerPlan, name: str, text: str) -> None:
    path = os.path.join(plan.dir, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    processes.die_with_supervisor()
    become(msgspec.json.decode(os.environ[PLAN], type=ServerPlan))
