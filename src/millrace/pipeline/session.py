"""A session with Spark, as captures hold it: over Connect (`spark.remote`) or a driver of our own (`spark.master`).

In: where Spark is. Out: a SparkSession, opened when it is first needed and again after the server, the driver or the
network died. Promise: only DataFrames are used, so both kinds behave alike [P6]; a call that finds no Spark fails
within seconds (`Unreachable`) instead of waiting for it [P8]. Every call blocks: asyncio shells use threads.

    an error of a call ──▶ is_gone? asked, not guessed from the error ─┬─ yes ─▶ dropped; a question is put once more
                                                                       └─ no ──▶ it is about what was asked
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from millrace import limits
from millrace.errors import MillraceError, Unreachable
from millrace.ops.logging import get_logger
from millrace.pipeline import server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
Open = Callable[[], "SparkSession"]     # opens a session, if there is none
log = get_logger(__name__)
RETRIES = 3                       # of one call over Connect, within two seconds: a dead server is our matter
RETRY_MAX_MS = 1_000
DRIVER_STOP_S = 5.0
DEFAULT_PORT = 15002              # of Spark Connect


@dataclass(frozen=True, slots=True)
class Place:
    """Where Spark is: one of `remote` (`sc://host:port`) and `master`. `conf`: settings of a driver of our own."""

    remote: str = ""
    master: str = ""
    conf: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For people: without what a session is told beside the address, which may be a token."""
        return self.remote.partition(";")[0].rstrip("/") or self.master

    @property
    def is_own_session(self) -> bool:
        """A remote that names a session is shared: nobody ends it for the others."""
        return bool(self.remote) and "session_id=" not in self.remote

    @property
    def greets(self) -> bool:
        """A greeting can be read without a session: there is no TLS around it. pyspark wraps a token in it, too, except
        on the way to localhost."""
        is_local = bool(self.remote) and _address(self.remote)[0] == server.CLIENT_HOST
        return bool(self.remote) and "use_ssl=true" not in self.remote and ("token=" not in self.remote or is_local)


class Session:
    def __init__(self, place: Place, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.place = place
        self.opened_count = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None
        self._used_at = 0.0

    def spark(self) -> SparkSession:
        """The session, opened if there is none. Unreachable: Spark is not there."""
        with self._lock:
            now = self._clock()
            if self._spark is not None and self.place.is_own_session and now - self._used_at > limits.SPARK_IDLE_S:
                self._forget()                    # the server may have forgotten it, too
            if self._spark is None:
                self._spark = self._open()
                self.opened_count += 1
            self._used_at = now
            return self._spark

    def ask(self, question: Callable[[Open], T]) -> T:
        """What does not change anything, and may be put twice: a session that has died since, for Spark was started
        anew, is dropped and opened again, once. Unreachable: Spark does not answer. Other errors are about the
        question."""
        found = self._asked(question)
        if isinstance(found, _Gone):
            found = self._asked(question)
        if isinstance(found, _Gone):
            raise Unreachable(f"Spark at {self.place.name}: {found.why}")
        return found

    def _asked(self, question: Callable[[Open], T]) -> T | _Gone:
        given: list[SparkSession] = []

        def open_() -> SparkSession:
            if not given:
                if self._spark is not None and self.place.greets and not self.answers():
                    raise Unreachable(f"no Spark Connect server answers at {self.place.name}")
                given.append(self.spark())
            return given[0]

        try:
            return question(open_)
        except MillraceError:
            raise
        except Exception as error:
            if not given or not self.is_gone(given[0]):
                raise
            self.drop(given[0])
            return _Gone(first_line(error))

    def drop(self, spark: SparkSession) -> None:
        """This one is broken: the next caller gets another. Whoever still waits in it is woken with an error."""
        with self._lock:
            if self._spark is spark:
                self._forget()

    def close(self) -> None:
        with self._lock:
            if self._spark is not None:
                spark, self._spark = self._spark, None
                self._end(spark)

    @contextlib.contextmanager
    def described(self, spark: SparkSession, tag: str, description: str) -> Iterator[None]:
        """Jobs of this thread carry the tag, by which they can be cancelled, and say what they are for."""
        spark.addTag(tag)
        if not self.place.remote:
            spark.sparkContext.setJobDescription(description)
        try:
            yield
        finally:
            spark.removeTag(tag)

    def answers(self) -> bool:
        """Whether Spark answers at all: a greeting, within SPARK_SILENT_S. Where none can be read the session is asked,
        if one is open, and whoever hangs in that is not to be waited for."""
        if self.place.greets:
            return server.answers(*_address(self.place.remote), limits.SPARK_SILENT_S)
        spark = self._spark
        return spark is None or not self.is_gone(spark)

    def is_gone(self, spark: SparkSession) -> bool:
        """Whether this session, or all of Spark, died: whatever the error says that made somebody ask."""
        try:
            return not self.is_alive(spark)
        except Exception:
            return True

    def is_alive(self, spark: SparkSession) -> bool:
        """Asks it; raises or returns False when it is not."""
        if self.place.remote:
            return bool(spark.conf.get("spark.app.name"))     # a call; the version is remembered
        context: Any = spark.sparkContext
        return not context._jsc.sc().isStopped()

    def cancel(self, spark: SparkSession, tag: str) -> None:
        spark.interruptTag(tag)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _open(self) -> SparkSession:
        began = self._clock()
        spark = _open_remote(self.place) if self.place.remote else _open_driver(self.place)
        log.info("spark session opened", at=self.place.name,
                 took_s=round(self._clock() - began, 2))
        return spark

    def _end(self, spark: SparkSession) -> None:
        if self.place.is_own_session:
            spark.stop()                          # the server may forget it at once
        elif self.place.remote:
            _close_remote(spark)
        else:
            with contextlib.suppress(Exception):
                spark.stop()
            _reset_driver()

    def _forget(self) -> None:
        spark, self._spark = self._spark, None
        assert spark is not None
        log.info("spark session given up", at=self.place.name)
        if self.place.remote:
            _close_remote(spark)
        else:
            _reset_driver(kill=True)              # it does not answer: it is not asked, either


class _Gone(NamedTuple):
    why: str


def _open_remote(place: Place) -> SparkSession:
    """Not through the builder: it keeps sessions in places where others would find them."""
    remote = place.remote
    if place.greets and not server.answers(*_address(remote)):
        raise Unreachable(f"no Spark Connect server answers at {place.name}")
    connect: Any = importlib.import_module("pyspark.sql.connect.session")
    retries: Any = importlib.import_module("pyspark.sql.connect.client.retries")
    spark: Any = None
    try:
        spark = connect.SparkSession(connection=remote)
        spark.client.set_retry_policies([retries.DefaultPolicy(max_retries=RETRIES, max_backoff=RETRY_MAX_MS)])
        spark.version                             # noqa: B018 - the first call opens it on the server
    except Exception as error:
        _close_remote(spark)
        raise Unreachable(f"Spark Connect server at {place.name}: {first_line(error)}") from error
    opened: SparkSession = spark
    return opened


def _address(remote: str) -> tuple[str, int]:
    host, colon, port = remote.removeprefix("sc://").partition(";")[0].partition("/")[0].rpartition(":")
    return (host, int(port)) if colon else (port, DEFAULT_PORT)


def _close_remote(spark: Any) -> None:
    """Closes the channel only: a server that does not answer is not asked to release anything."""
    with contextlib.suppress(Exception):
        spark.client.close()


def _open_driver(place: Place) -> SparkSession:
    from pyspark.sql import SparkSession

    if place.master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", server.HOST)  # where it listens, its web pages included
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)   # a driver goes by this alone, whatever its settings say
    builder = SparkSession.builder.master(place.master).appName("millrace")
    for key, value in place.conf.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        _reset_driver()
        raise Unreachable(f"Spark at {place.master}: {first_line(error)}") from error


def _reset_driver(*, kill: bool = False) -> None:
    """pyspark holds on to the gateway of a JVM that is gone; without this no other one would ever be started."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        if kill:
            gateway.proc.kill()
        with contextlib.suppress(Exception):
            gateway.shutdown()
        _end(gateway.proc)
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _end(driver: subprocess.Popen[bytes]) -> None:
    """The JVM ends when its standard input does; one that hangs is killed."""
    with contextlib.suppress(OSError):
        assert driver.stdin is not None
        driver.stdin.close()
    try:
        driver.wait(DRIVER_STOP_S)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()


def first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
