"""The table of topic configs."""

from __future__ import annotations

import pytest

from millrace.core.topic_configs import TOPIC_CONFIGS, accept, default_min_insync, parse
from millrace.errors import InvalidTopicConfig


@pytest.mark.parametrize("key", TOPIC_CONFIGS)
def test_L3_every_default_is_a_valid_value_and_documented(key: str) -> None:
    config = TOPIC_CONFIGS[key]
    assert config.doc.endswith(".")
    if config.default is not None:
        assert config.parse(str(config.default)) == config.default


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("retention.ms", "-1", -1),
        ("min.insync.replicas", "3", 3),
        ("cleanup.policy", "delete, compact", "compact,delete"),
        ("millrace.placement", "rack-aware", "rack-aware"),
    ],
)
def test_L3_values_are_typed(key: str, text: str, value: object) -> None:
    assert parse(key, text) == value


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("retention.ms", "-2", "out of range"),
        ("retention.ms", "soon", "not a whole number"),
        ("retention.ms", "1_000", "not a whole number"),
        ("retention.ms", "9" * 20, "not a whole number"),
        ("cleanup.policy", "delete" + " " * 100, "at most 100 characters"),
        ("min.insync.replicas", "0", "out of range"),
        ("max.message.bytes", str(2**31), "out of range"),
        ("cleanup.policy", "burn", "delete | compact"),
        ("compression.type", "gzip", "producer"),
        ("unclean.leader.election.enable", "true", "false"),
        ("no.such.key", "1", "unknown topic config 'no.such.key'; known:"),
    ],
)
def test_L3_bad_values_name_key_and_remedy(key: str, text: str, says: str) -> None:
    with pytest.raises(InvalidTopicConfig) as caught:
        parse(key, text)
    assert says in str(caught.value)
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("key", "text", "in_force"),
    [
        ("segment.bytes", "1048576", "268435456"),
        ("cleanup.policy", "compact", "delete"),
        ("cleanup.policy", "compact,delete", "delete"),
        ("delete.retention.ms", "1", "86400000"),
        ("min.compaction.lag.ms", "1", "0"),
    ],
)
def test_L3_values_that_nothing_acts_on_are_refused_with_the_one_in_force(key: str, text: str, in_force: str) -> None:
    with pytest.raises(InvalidTopicConfig, match=f"{key}={text} would not be acted on: {key}={in_force} is in force"):
        accept(key, text)
    assert str(accept(key, in_force)) == in_force


def test_L3_min_insync_default_follows_the_replication_factor() -> None:
    assert [default_min_insync(factor) for factor in (1, 2, 3, 5)] == [1, 1, 2, 2]
