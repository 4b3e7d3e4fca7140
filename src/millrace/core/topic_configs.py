"""The typed table of topic configs: what may be set on a topic, to which values, and what it means.

In: a key and the text a client sent. Out: a typed value, or InvalidTopicConfig that names key and remedy. Keys and
values the product would not honour are refused rather than stored: a setting that does nothing is a lie.

Some keys are known to every tool although nothing here acts on them (compaction, the size of log files): their table
row is `fixed`, the default says what is true today, and only that value is accepted. Records may hold another one,
written before it was refused: `parse` reads those, and what is in force is the default all the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from millrace import limits
from millrace.errors import InvalidTopicConfig

Value = int | str
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
DAY_MS = 24 * 3600 * 1000
TEXT_CHARS_MAX = 100   # of a value as sent: it becomes part of a metadata record
_WHOLE = re.compile(r"-?[0-9]{1,19}")

PLACEMENTS = ("round-robin", "least-loaded", "rack-aware")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """`default` None: depends on the topic or the cluster, `doc` says how. `choices` for texts, bounds for numbers.

    `fixed`: the default is in force whatever a topic says, and nothing else may be set."""

    key: str
    default: Value | None
    doc: str
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = LONG_MAX
    fixed: bool = False

    @property
    def is_number(self) -> bool:
        return not self.choices

    def parse(self, text: str) -> Value:
        if len(text) > TEXT_CHARS_MAX:
            raise InvalidTopicConfig(f"{self.key}: a value has at most {TEXT_CHARS_MAX} characters, not {len(text)}")
        return self._number(text) if self.is_number else self._choice(text)

    def _number(self, text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise InvalidTopicConfig(f"{self.key}={text!r} is not a whole number")
        value = int(text)
        if not self.low <= value <= self.high:
            raise InvalidTopicConfig(f"{self.key}={value} is out of range: give {self.low} to {self.high}")
        return value

    def _choice(self, text: str) -> str:
        value = ",".join(sorted(part.strip() for part in text.split(",")))
        if value not in self.choices:
            raise InvalidTopicConfig(f"{self.key}={text!r} is not one of {' | '.join(self.choices)}")
        return value


def _table(*configs: TopicConfig) -> dict[str, TopicConfig]:
    return {config.key: config for config in configs}


MIN_INSYNC = "min.insync.replicas"
PLACEMENT = "millrace.placement"

TOPIC_CONFIGS = _table(
    TopicConfig(MIN_INSYNC, None, "acks=all writes and the high watermark need so many in-sync replicas. "
                "Default: 2 for a replication factor of 3 or more, 1 below.", low=1, high=INT_MAX),
    TopicConfig("max.message.bytes", limits.BATCH_BYTES_MAX, "Largest record batch a producer may send.",
                high=limits.BATCH_BYTES_CEILING),
    TopicConfig("retention.ms", None, "Log files whose newest record is older are removed; -1: never by age. Default: "
                "the brokers' `retention_ms`, 7 days; of millrace's own topics -1.", low=-1),
    TopicConfig("retention.bytes", None, "The oldest log files of a partition are removed while what is left has this "
                "size; -1: never by size. Default: the brokers' `retention_bytes`, -1.", low=-1),
    TopicConfig("segment.bytes", limits.LOG_FILE_BYTES, "A log file rolls at this size, unless a broker's own "
                "log_file_bytes says otherwise.", low=64 * limits.KIB, high=INT_MAX, fixed=True),
    TopicConfig("segment.ms", limits.SEGMENT_MS, "A log file rolls when its first record is older than this or than "
                "retention.ms.", low=1000),
    TopicConfig("cleanup.policy", "delete", "Old records are removed by retention.ms and retention.bytes; no topic is "
                "compacted.", choices=("delete", "compact", "compact,delete"), fixed=True),
    TopicConfig("delete.retention.ms", DAY_MS, "Deletion marks are kept: there is no compaction.", fixed=True),
    TopicConfig("min.compaction.lag.ms", 0, "Records are kept: there is no compaction.", fixed=True),
    TopicConfig("compression.type", "producer", "Batches are kept as the producer compressed them.",
                choices=("producer",)),
    TopicConfig("message.timestamp.type", "CreateTime", "Records keep the time the producer gave them.",
                choices=("CreateTime",)),
    TopicConfig("unclean.leader.election.enable", "false", "A replica that may lack records never becomes "
                "leader by itself.", choices=("false",)),
    TopicConfig("replica.lag.time.max.ms", int(limits.REPLICA_LAG_S * 1000),
                "A follower that has not caught up for this long leaves the ISR.", low=500, high=INT_MAX),
    TopicConfig(PLACEMENT, None, "How replicas are placed when partitions are created. Default: the cluster's policy.",
                choices=PLACEMENTS),
)


def parse(key: str, text: str) -> Value:
    """The typed value of a record, or InvalidTopicConfig."""
    config = TOPIC_CONFIGS.get(key)
    if config is None:
        raise InvalidTopicConfig(f"unknown topic config {key!r}; known: {', '.join(sorted(TOPIC_CONFIGS))}")
    return config.parse(text)


def accept(key: str, text: str) -> Value:
    """The typed value of a request, or InvalidTopicConfig, also where the product would not act on it."""
    value = parse(key, text)
    config = TOPIC_CONFIGS[key]
    if config.fixed and value != config.default:
        raise InvalidTopicConfig(f"{key}={text} would not be acted on: {key}={config.default} is in force for every "
                                 "topic (there is no compaction); set that or leave it out")
    return value


def check_min_insync(values: dict[str, Value], replication_factor: int) -> None:
    """More in-sync replicas than there are replicas: no write with acks=all could ever succeed."""
    wanted = int(values.get(MIN_INSYNC, 1))
    if wanted > replication_factor:
        raise InvalidTopicConfig(f"{MIN_INSYNC}={wanted} is more than the {replication_factor} replicas there are: "
                                 f"give 1 to {replication_factor}, or a higher replication factor")


def default_min_insync(replication_factor: int) -> int:
    """Two copies acknowledge where three exist, so that one may be away [L3]."""
    return 2 if replication_factor >= 3 else 1
