"""Configuration is strict: what it does not know or cannot use it refuses, in one line that names the key."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from millrace.errors import ConfigError
from millrace.ops import config


def refused(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, environ=environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_empty_text_is_the_defaults() -> None:
    assert config.parse("") == config.Config()


def test_values_are_read() -> None:
    found = config.parse("broker: {kafka_port: 19092, flush: os, lease_s: 3}\nstore: {url: 'etcd://a:2379/m'}")
    assert (found.broker.kafka_port, found.broker.flush, found.broker.lease_s) == (19092, "os", 3.0)
    assert found.store_url == "etcd://a:2379/m"
    assert found.link_port == 19192


@pytest.mark.parametrize(("text", "key", "remedy"), [
    ("broker: {kafka_prot: 1}", "broker.kafka_prot", "did you mean kafka_port?"),
    ("brokre: {}", "brokre", "did you mean broker?"),
    ("broker: {kafka_port: nine}", "broker.kafka_port", "expected `int`"),
    ("broker: {kafka_port: 70000}", "broker.kafka_port", "65535"),
    ("broker: {kafka_port: '9092'}", "broker.kafka_port", "expected `int`"),
    ("broker: {flush: sometimes}", "broker.flush", "invalid enum value"),
    ("broker: {auto_create_topics: 1}", "broker.auto_create_topics", "expected `bool`"),
    ("broker: [1]", "broker", "expected `object`"),
    ("cluster: {id: mine}", "cluster.id", "UUID"),
    ("broker: {tenure_s: 4}", "broker.tenure_s", "lower it"),
    ("broker: {heartbeat_s: 2}", "broker.heartbeat_s", "lower it"),
    ("broker: {heartbeat_s: 1.1}", "broker.heartbeat_s", "lower it"),
    ("broker: {http_port: 9092}", "broker.kafka_port", "its own port"),
    ("broker: {kafka_port: 65500}", "broker.link_port", "65535"),
    ("broker: {host: 0.0.0.0}", "broker.advertised_host", "give this machine's name"),
    ("capture: {http_port: 0}", "capture.http_port", "1"),
    ("capture: {http_port: 65300}", "capture.link_port", "65535"),
    ("capture: {link_port: 8300}", "capture.link_port", "its own port"),
    ("capture: {bootstrap: [broker]}", "capture.bootstrap", "host:port"),
    ("capture: {bootstrap: 'a:1'}", "capture.bootstrap", "array"),
    ("capture: {host: '::'}", "capture.advertised_host", "give this machine's name"),
    ("store: {url: 'zookeeper://a'}", "store.url", "sqlite:/path or etcd://"),
    ("spark: {remote: 'sc://a:1', master: 'local[2]'}", "spark.master", "leave one of them out"),
    ("spark: {remote: 'spark://a:7077'}", "spark.remote", "sc://host:port"),
    ("spark: {conf: ['spark.ui.port']}", "spark.conf", "spark.key=value"),
    ("spark: {memory: 1}", "spark.memory", "expected `str`"),
    ("spark: {memory: 1gb}", "spark.memory", "regex"),
    ("{", "not YAML", ""),
    ("a: 1\na: 2", "not YAML", ""),
    ("- a", "expected sections", "docs/configuration.md"),
])
def test_bad_input_names_the_key_and_the_remedy(text: str, key: str, remedy: str) -> None:
    message = refused(text)
    assert key in message
    assert remedy in message


@pytest.mark.parametrize("lease_s", [5.9, 6, 60])
def test_L16_lease_must_be_below_the_session_less_drift(lease_s: float) -> None:
    message = refused(f"broker: {{lease_s: {lease_s}, session_s: 6}}")
    assert "broker.lease_s" in message
    assert "lower lease_s or raise session_s" in message
    config.parse("broker: {lease_s: 5.8, session_s: 6}")


def test_environment_overrides_the_file() -> None:
    found = config.parse("broker: {kafka_port: 1000}", environ={
        "MILLRACE_BROKER__KAFKA_PORT": "2000", "MILLRACE_BROKER__AUTO_CREATE_TOPICS": "false",
        "MILLRACE_BROKER__RACK": "7", "MILLRACE_SUPERVISOR_PID": "1", "OTHER__THING": "x"})
    assert (found.broker.kafka_port, found.broker.auto_create_topics, found.broker.rack) == (2000, False, "7")


def test_environment_is_as_strict_as_the_file() -> None:
    message = refused("", MILLRACE_BROKER__KAFKA_PROT="1")
    assert "MILLRACE_BROKER__KAFKA_PROT" in message
    assert "did you mean broker.kafka_port?" in message
    assert "MILLRACE_BROKER__KAFKA_PORT" in refused("", MILLRACE_BROKER__KAFKA_PORT="many")
    assert "MILLRACE_BROKER__KAFKA_PORT" in refused("", MILLRACE_BROKER__KAFKA_PORT="0")
    assert "broker.lease_s" in refused("", MILLRACE_BROKER__LEASE_S="60")


def test_relative_paths_count_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "millrace.yaml"
    path.write_text("cluster: {dir: here}\nlogging: {dir: '-'}\nstore: {url: 'sqlite:meta'}")
    found = config.load(str(path), environ={})
    assert found.cluster.dir == str(tmp_path / "here")
    assert found.data_dir(2) == str(tmp_path / "here" / "broker-2")
    assert found.store_url == f"sqlite:{tmp_path / 'meta'}"
    assert found.logs_dir == "-"


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; name one with --config"):
        config.load(str(tmp_path / "none.yaml"))


def test_dump_is_read_back() -> None:
    identity = str(uuid.uuid4())
    text = config.dump({"cluster": {"id": identity, "dir": "."}}, "why\nand how")
    assert text.startswith("# why\n# and how\n")
    assert str(config.parse(text).cluster.id) == identity


def test_every_key_has_a_description() -> None:
    for section, key, _ in config.all_keys():
        assert config.description(section, key), f"{section}.{key}"


def test_brokers_to_start_from() -> None:
    assert config.parse("").bootstrap == ("127.0.0.1:9092",)
    assert config.parse("capture: {bootstrap: ['a:1', 'b:2']}").bootstrap == ("a:1", "b:2")
    assert config.parse("", environ={"MILLRACE_CAPTURE__BOOTSTRAP": "a:1, b:2"}).bootstrap == ("a:1", "b:2")


def test_settings_of_spark_from_the_environment() -> None:
    found = config.parse("", environ={"MILLRACE_SPARK__CONF": "spark.a=1,spark.b=2", "MILLRACE_SPARK__CORES": "3"})
    assert found.spark.conf == ("spark.a=1", "spark.b=2")
    assert found.spark.cores == 3
