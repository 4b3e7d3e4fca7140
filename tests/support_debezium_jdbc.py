"""Debezium's JDBC sink on a standalone worker of Kafka Connect: a process of its own, from jars of Maven Central.

In: brokers, topics of Debezium's messages with schemas, a database to write to. Out: tables there, one per topic, and
for each connector that its group has committed the end of its topics, or why it has failed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from support_cluster import wait_for
from support_debezium import jars
from support_ports import free_ports

CONNECT = "4.3.0"
SINK = "3.5.0.Final"            # the last version of which Maven Central's mirrors have every part
JARS = (("io.debezium", "debezium-connector-jdbc", SINK), ("org.apache.kafka", "connect-runtime", CONNECT),
        ("org.apache.kafka", "connect-json", CONNECT), ("org.apache.kafka", "connect-transforms", CONNECT),
        ("org.slf4j", "slf4j-simple", "1.7.36"))
RUN_S = 300.0
_JSON = "org.apache.kafka.connect.json.JsonConverter"


class Worker:
    """A running worker; `topics` by connector."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, bootstrap: str, topics: Mapping[str, Sequence[str]],
                 log: Path) -> None:
        self._process, self._port, self._bootstrap, self._topics, self._log = process, port, bootstrap, topics, log
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def run(self, connector: str) -> str | None:
        """Until the connector has written all: None. Until its task has failed: the trace."""
        topics = self._topics[connector]
        ends = self._ends(topics)

        def ended() -> list[str | None]:
            failed = self._failure(connector)
            return [failed] if failed is not None or self._committed(connector, topics) == ends else []

        found: list[str | None] = wait_for(ended, f"{connector} to write {ends}, log: {self._log}", RUN_S)
        return found[0]

    def _failure(self, connector: str) -> str | None:
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        url = f"http://127.0.0.1:{self._port}/connectors/{connector}/status"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                tasks: list[dict[str, Any]] = json.load(answer)["tasks"]
        except urllib.error.HTTPError as not_yet:
            not_yet.close()
            return None
        return next((task["trace"] for task in tasks if task["state"] == "FAILED"), None)

    def _ends(self, topics: Sequence[str]) -> dict[str, int]:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "ends"})
        try:
            return {topic: consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1] for topic in topics}
        finally:
            consumer.close()

    def _committed(self, connector: str, topics: Sequence[str]) -> dict[str, int]:
        asked = ConsumerGroupTopicPartitions(f"connect-{connector}", [TopicPartition(one, 0) for one in topics])
        [found] = self._admin.list_consumer_group_offsets([asked]).values()
        return {one.topic: one.offset for one in found.result(20).topic_partitions}


def sink_settings(name: str, topics: Sequence[str], url: str, more: Mapping[str, str]) -> dict[str, str]:
    """What every user of Debezium's messages gives the connector, and `more`."""
    parts = urlsplit(url)
    return {
        "name": name, "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector", "topics": ",".join(topics),
        "connection.url": f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}",
        "connection.username": unquote(parts.username or ""), "connection.password": unquote(parts.password or ""),
        "insert.mode": "upsert", "delete.enabled": "true", "truncate.enabled": "true",
        "primary.key.mode": "record_key", "schema.evolution": "basic", **more,
    }


@contextlib.contextmanager
def worker(directory: Path, bootstrap: str, sinks: Sequence[Mapping[str, str]]) -> Iterator[Worker]:
    [port] = free_ports(1)
    paths = [_write(directory / "worker", {
        "bootstrap.servers": bootstrap, "listeners": f"http://127.0.0.1:{port}", "offset.flush.interval.ms": "500",
        "key.converter": _JSON, "value.converter": _JSON, "plugin.discovery": "only_scan",
        "offset.storage.file.filename": str(directory / "offsets"), "consumer.auto.offset.reset": "earliest",
    }), *(_write(directory / one["name"], one) for one in sinks)]
    with open(directory / "log", "wb") as out:
        process = subprocess.Popen(
            ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jars(f"jdbc-sink-{SINK}", JARS),
             "org.apache.kafka.connect.cli.ConnectStandalone", *paths], stdout=out, stderr=out, cwd=directory)
    try:
        yield Worker(process, port, bootstrap, {one["name"]: one["topics"].split(",") for one in sinks},
                     directory / "log")
    finally:
        process.kill()
        process.wait()


def _write(path: Path, settings: Mapping[str, str]) -> str:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return str(path)
