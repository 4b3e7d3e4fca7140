"""Spark for tests: a Connect server that can be hurt, a standalone cluster, and what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from millrace.ops.cluster_secret import SPARK
from millrace.ops.processes import start_time
from millrace.pipeline import server
from millrace.pipeline.jvm import MODULE_OPTIONS, class_path, find_java, spark_home
from millrace.pipeline.server import ServerPlan
from millrace.pipeline.session import Place, Session
from support_cluster import wait_for
from support_ports import free_ports
from support_secret import SECRET

TESTS = Path(__file__).parent
# Workers import from tests/, and run the tree that the tests run.
WORKERS_PATH = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
TOKEN = SECRET.token(SPARK)
START_S = 180.0                # a JVM on a very busy machine
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """All descendants that live."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            direct = [int(one) for one in task.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [one for child in direct for one in (child, *children_of(child))]
    return found


def cpu_s(pids: list[int]) -> float:
    """User and system time of these processes, and of children they have waited for."""
    total = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(map(int, stat[11:15]))
    return total / TICKS_PER_S


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if start_time(pid) is not None]


@dataclass
class SparkServer:
    """Always at the same port: as often as it is started, clients find it there. Its workers can import from tests/."""

    dir: Path
    master: str = "local[2,2]"
    conf: tuple[str, ...] = ()
    compiler: str = "quick"
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def remote(self) -> str:
        return server.remote(self.port, TOKEN)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, *, wait: bool = True) -> SparkServer:
        self.dir.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_ports(1)[0]
        plan = ServerPlan(dir=str(self.dir), port=self.port, master=self.master, token=TOKEN, conf=self.conf,
                          compiler=self.compiler, log_path=str(self.dir / "spark.log"))
        self.process = server.start(plan, stderr_path=str(self.dir / "stderr"),
                                    environ={**os.environ, "PYTHONPATH": WORKERS_PATH})
        if wait:
            self.wait()
        return self

    def wait(self) -> None:
        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, (self.dir / "stderr").read_text()
            return server.answers("127.0.0.1", self.port)

        wait_for(ready, "the Spark Connect server", START_S)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(30)

    def workers(self) -> list[int]:
        """The daemon and the Python workers."""
        return children_of(self.pid)


def warm(running: SparkServer) -> None:
    """The first job takes seconds; what tests measure is those after it."""
    session = Session(Place(remote=running.remote))
    session.spark().range(2, numPartitions=2).mapInArrow(_same, "id long").toArrow()
    session.close()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


@dataclass
class Standalone:
    """A master and two workers, each with one core, as Spark's own scripts would start them."""

    dir: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    master: subprocess.Popen[bytes] | None = None
    url: str = ""

    def start(self) -> Standalone:
        self.dir.mkdir(parents=True, exist_ok=True)
        port, master_ui, *worker_uis = free_ports(4)
        self.url = f"spark://127.0.0.1:{port}"
        self.master = self._java("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port",
                                 str(port), "--webui-port", str(master_ui))
        for n, ui in enumerate(worker_uis):
            self.workers.append(self._java(
                f"worker-{n}", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1",
                "--memory", "1g", "--webui-port", str(ui), "--work-dir", str(self.dir / f"work-{n}"), self.url))
        wait_for(lambda: self.registered() == 2, "both workers to register", START_S)
        return self

    def registered(self) -> int:
        return (self.dir / "master.log").read_text().count("Registering worker")

    def _java(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """The worker starts executors by Spark's own launcher, which wants to know where Spark is."""
        environ = {**os.environ, "SPARK_HOME": spark_home(), "SPARK_SCALA_VERSION": "2.13", "PYTHONPATH": WORKERS_PATH,
                   "SPARK_LOCAL_IP": "127.0.0.1"}
        with open(self.dir / f"{name}.log", "wb") as out:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", find_java().path, "-Xmx256m", "-XX:TieredStopAtLevel=1",
                 *MODULE_OPTIONS, "-cp", class_path(), *arguments],
                env=environ, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        processes = [one for one in (*self.workers, self.master) if one is not None]
        left = [pid for one in processes for pid in children_of(one.pid)]
        for process in processes:
            process.kill()
            process.wait()
        for pid in alive(left):
            os.kill(pid, signal.SIGKILL)


def killed_at_once(path: bytes) -> bytes:
    """An errand that leaves a line and kills its worker."""
    with open(path, "a") as file:
        file.write("run\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return b""
