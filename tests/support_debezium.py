"""Debezium's engine as a peer of tests: jars by Maven into the user's cache, a small Java main, messages as values.

In: a database with a slot-to-be, SQL before the snapshot and behind it. Out: `Peer`s: key, value and headers as Kafka
Connect's converters write them, with schemas and without.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import psycopg

CACHE = os.path.expanduser(os.environ.get("MILLRACE_PEER_DIR", "~/.cache/millrace/peers"))
VERSION = "3.6.3.Final"
ENGINE = (("io.debezium", "debezium-connector-postgres", VERSION), ("io.debezium", "debezium-embedded", VERSION))
SOURCES = os.path.join(os.path.dirname(__file__), "peers")
END = "zz_end"
RUN_S = 100.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>peer</groupId>
<artifactId>peer</artifactId><version>1</version><dependencyManagement><dependencies>{0}</dependencies>
</dependencyManagement><dependencies>{0}</dependencies></project>"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def jars(name: str, wanted: Sequence[tuple[str, str, str]]) -> str:
    """A class path of these and all they need; the versions named here win over those that others ask for. Fetched
    once, by the first process that needs them."""
    directory = os.path.join(CACHE, name)
    if not os.path.exists(os.path.join(directory, "complete")):
        os.makedirs(CACHE, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            with open(os.path.join(made, "pom.xml"), "w", encoding="ascii") as file:
                file.write(_POM.format("".join(_DEPENDENCY.format(*one) for one in wanted)))
            subprocess.run(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={made}/jars"],
                           cwd=made, check=True, timeout=600)
            with open(os.path.join(made, "complete"), "w", encoding="ascii"):
                pass
            os.chmod(made, 0o755)
            with contextlib.suppress(OSError):       # another process was faster
                os.rename(made, directory)
            os.makedirs(made, exist_ok=True)
    return os.path.join(directory, "jars", "*")


def compiled(name: str, class_path: str, directory: str) -> str:
    """The class path with a main of ours in front."""
    subprocess.run(["javac", "-cp", class_path, "-d", directory, os.path.join(SOURCES, f"{name}.java")], check=True,
                   timeout=60)
    return directory + os.pathsep + class_path


class Peer(NamedTuple):
    """One message of Debezium's. `key`, `value`: with schemas; `bare_…`: without."""

    topic: str
    key: bytes | None
    value: bytes | None
    bare_key: bytes | None
    bare_value: bytes | None
    headers: dict[str, bytes]


def settings(url: str, *, slot: str, publication: str, prefix: str, more: Mapping[str, str]) -> dict[str, str]:
    """Debezium's own defaults but for what says where; positions in memory."""
    parts = urlsplit(url)
    return {
        "name": "peer", "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "database.hostname": parts.hostname or "", "database.port": str(parts.port), "topic.prefix": prefix,
        "database.user": unquote(parts.username or ""), "database.password": unquote(parts.password or ""),
        "database.dbname": parts.path.lstrip("/"), "plugin.name": "pgoutput", "slot.name": slot,
        "publication.name": publication, "publication.autocreate.mode": "disabled", "poll.interval.ms": "50",
        **more,
    }


def run_engines(url: str, *, publication: str, prefix: str, behind_snapshot: Callable[[], None],
                options: Mapping[str, Mapping[str, str]]) -> dict[str, list[Peer]]:
    """One engine for each set of options, side by side, until the message of table `zz_end` is there, which
    `behind_snapshot` writes last."""
    with tempfile.TemporaryDirectory() as directory:
        class_path = compiled("Dump", jars(f"debezium-{VERSION}", ENGINE), directory)
        wanted = {name: settings(url, slot=f"peer_{name}", publication=publication, prefix=prefix,
                                 more={"custom.metric.tags": f"engine={name}", **more})
                  for name, more in options.items()}
        with _engines(directory, class_path, wanted) as engines:
            for name in options:
                _wait_for_stream(url, f"peer_{name}", engines.process)
            behind_snapshot()
            return engines.messages()


class _Engines(NamedTuple):
    """All of them in one process: most of what one costs is its start."""

    process: subprocess.Popen[bytes]
    directory: str
    names: tuple[str, ...]

    def messages(self) -> dict[str, list[Peer]]:
        if self.process.wait(RUN_S) != 0:
            with open(os.path.join(self.directory, "log"), encoding="utf-8") as log:
                raise AssertionError(f"Debezium failed: {log.read()[-3000:]}")
        found = {}
        for name in self.names:
            with open(os.path.join(self.directory, f"{name}.messages"), encoding="utf-8") as file:
                found[name] = [_peer(json.loads(line)) for line in file]
        return found


@contextlib.contextmanager
def _engines(directory: str, class_path: str, wanted: Mapping[str, Mapping[str, str]]) -> Iterator[_Engines]:
    files = []
    for name, given in wanted.items():
        path = os.path.join(directory, name)
        files += [f"{path}.settings", f"{path}.messages"]
        with open(f"{path}.settings", "w", encoding="utf-8") as file:
            file.writelines(f"{key}={value}\n" for key, value in given.items())
    with open(os.path.join(directory, "log"), "wb") as log:
        process = subprocess.Popen(
            ["java", "-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", class_path, "Dump", END, *files],
            stdout=log, stderr=log)
    try:
        yield _Engines(process, directory, tuple(wanted))
    finally:
        process.kill()
        process.wait()


def _wait_for_stream(url: str, slot: str, process: subprocess.Popen[bytes]) -> None:
    """The snapshot is over when the slot is read from."""
    deadline = time.monotonic() + RUN_S
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < deadline and process.poll() is None:
            row = connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s AND"
                                     " EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming' AND pid ="
                                     " active_pid)", [slot]).fetchone()
            if row is not None:
                return
            time.sleep(0.05)


def _peer(line: dict[str, Any]) -> Peer:
    def octets(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    return Peer(line["topic"], octets(line["key"]), octets(line["value"]), octets(line["bare_key"]),
                octets(line["bare_value"]), {name: octets(text) or b"" for name, text in line["headers"].items()})
