"""A transactional producer is refused, and each client says that it is for lack of support [L20]."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError

import support_readers
from support_cluster import Cluster


def confluent(bootstrap: str) -> None:
    Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx"}).init_transactions(20)


def kafka_python(bootstrap: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), transactional_id="tx", max_block_ms=20_000)
    try:
        producer.init_transactions()
    finally:
        producer.close(timeout=0)


def aiokafka(bootstrap: str) -> None:
    async def main() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="tx", request_timeout_ms=20_000)
        try:
            await producer.start()
        finally:
            await producer.stop()

    asyncio.run(main())


CLIENTS = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}


@pytest.mark.parametrize("client", CLIENTS)
def test_L20_a_transactional_producer_hears_that_transactions_are_not_supported(cluster: Cluster, client: str) -> None:
    with pytest.raises((KafkaException, KafkaError, AioKafkaError)) as refused:
        CLIENTS[client](cluster.bootstrap)
    _says_so(f"{type(refused.value).__name__} {refused.value}")


@pytest.mark.long
@pytest.mark.parametrize("client", ["java", "franz-go"])
def test_L20_so_does_one_of_another_language(cluster: Cluster, topic: str, client: str, tmp_path: Path) -> None:
    command = (support_readers.java(tmp_path, "Transactional.java") if client == "java"
               else support_readers.franz_go(tmp_path, "./transactional"))
    done = subprocess.run([*command, cluster.bootstrap, topic], capture_output=True, text=True, timeout=120, check=True)
    _says_so(done.stdout)


def _says_so(text: str) -> None:
    print(text)
    assert "support" in text.lower(), text
    assert "authoriz" not in text.lower(), text
