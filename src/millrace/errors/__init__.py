"""The one tree of errors. The class answers: whose fault, try again?, which code.

    MillraceError
    ├── UserError ............. bad input; the message names the key and the remedy, nothing was changed
    │   ├── ConfigError          exit 2; ReferenceRefused
    │   ├── Unauthenticated, Denied, WrongMediaType   at the door of HTTP
    │   ├── InvalidRequest, InvalidTopicName, InvalidPartitions, InvalidReplicationFactor, InvalidTopicConfig …
    │   ├── UnknownTopicOrPartition, TopicExists …
    │   ├── SecretNotProved, TopicNotAuthorized, ClusterNotAuthorized
    │   └── SourceError          the database of a source: SourceAuthFailed, SourceNotPermitted, SlotLost …
    ├── Refused ............... a rule of the protocol said no (stale epoch, not leader, lease over)
    │   ├── NotLeader, FencedLeaderEpoch, UnknownLeaderEpoch, NotEnoughReplicas …
    │   ├── Deposed, OfficeHeld, MemberHeld, StaleIncarnation, StaleToken
    │   └── PositionMissing, Superseded, PositionMoved, ClaimRefused …
    ├── Unreachable ........... the other side did not answer (retriable)
    ├── DeliveryError ......... a sink did not take what it was given: DeliveryTransient, RowRefused, TableRefused,
    │                           ExpressionBroke
    │                           or what it was to be given is gone: LogReleased
    └── Damaged ............... bytes that are not what was written
        └── CorruptBatch, NewerFormat, DiskFailed

`kafka_code` is what a Kafka client is told, `http_status` what an HTTP client is told, `code` what everyone reads.
"""

from __future__ import annotations

from millrace.errors.base import (
    ConfigError,
    Damaged,
    Denied,
    InvalidRequest,
    Malformed,
    MillraceError,
    NewerFormat,
    OutOfOrder,
    ReferenceRefused,
    Refused,
    TimedOut,
    Unauthenticated,
    Unreachable,
    UnsupportedVersion,
    UserError,
    WrongMediaType,
)
from millrace.errors.disk import (
    DiskFailed,
    DiskFull,
    ForeignDirectory,
    SpoolFull,
)
from millrace.errors.feeds import (
    ChangefeedExists,
    ClaimRefused,
    CopyNotReadable,
    DataLost,
    DeliveryError,
    DeliveryTransient,
    ExpressionBroke,
    InvalidExpression,
    InvalidOption,
    InvalidSinkUri,
    LogReleased,
    PositionExists,
    PositionMissing,
    PositionMoved,
    PositionRefused,
    QuarantineNotEmpty,
    RowOutdated,
    RowRefused,
    SchemaChanged,
    SourceInUse,
    Superseded,
    TableRefused,
    TableTruncated,
    TopicTaken,
    UnknownChangefeed,
    UnknownQuarantinedRow,
    WriterIdNeeded,
)
from millrace.errors.log import (
    BrokerInUse,
    CorruptBatch,
    DuplicateSequence,
    FencedLeaderEpoch,
    InvalidAssignment,
    InvalidPartitions,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidReplicationFactor,
    InvalidRequiredAcks,
    InvalidTopicConfig,
    InvalidTopicName,
    LeaderNotAvailable,
    MessageTooLarge,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PolicyViolation,
    RequestTimedOut,
    TopicExists,
    UnknownBroker,
    UnknownGroup,
    UnknownLeaderEpoch,
    UnknownProducerId,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedForMessageFormat,
)
from millrace.errors.offices import (
    Deposed,
    IndexCompacted,
    IndexConflict,
    MemberHeld,
    NotController,
    NotCoordinator,
    OfficeHeld,
    StaleIncarnation,
    StaleToken,
    StoreUnreachable,
)
from millrace.errors.secrets import (
    ClusterNotAuthorized,
    SecretNotProved,
    TopicNotAuthorized,
)
from millrace.errors.sources import (
    CopyUnderWay,
    InvalidTableRule,
    PublicationMissing,
    SlotActive,
    SlotLost,
    SlotMissing,
    SourceAuthFailed,
    SourceError,
    SourceExists,
    SourceNotPermitted,
    SourceNotReady,
    SourceNotSuited,
    SourceUnreachable,
    UnknownSource,
    UnknownTable,
)

__all__ = [
    "BrokerInUse",
    "ChangefeedExists",
    "ClaimRefused",
    "ClusterNotAuthorized",
    "ConfigError",
    "CopyNotReadable",
    "CopyUnderWay",
    "CorruptBatch",
    "Damaged",
    "DataLost",
    "DeliveryError",
    "DeliveryTransient",
    "Denied",
    "Deposed",
    "DiskFailed",
    "DiskFull",
    "DuplicateSequence",
    "ExpressionBroke",
    "FencedLeaderEpoch",
    "ForeignDirectory",
    "IndexCompacted",
    "IndexConflict",
    "InvalidAssignment",
    "InvalidExpression",
    "InvalidOption",
    "InvalidPartitions",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "InvalidReplicationFactor",
    "InvalidRequest",
    "InvalidRequiredAcks",
    "InvalidSinkUri",
    "InvalidTableRule",
    "InvalidTopicConfig",
    "InvalidTopicName",
    "LeaderNotAvailable",
    "LogReleased",
    "Malformed",
    "MemberHeld",
    "MessageTooLarge",
    "MillraceError",
    "NewerFormat",
    "NotController",
    "NotCoordinator",
    "NotEnoughReplicas",
    "NotEnoughReplicasAfterAppend",
    "NotLeader",
    "OfficeHeld",
    "OffsetNotAvailable",
    "OffsetOutOfRange",
    "OutOfOrder",
    "OutOfOrderSequence",
    "PolicyViolation",
    "PositionExists",
    "PositionMissing",
    "PositionMoved",
    "PositionRefused",
    "PublicationMissing",
    "QuarantineNotEmpty",
    "ReferenceRefused",
    "Refused",
    "RequestTimedOut",
    "RowOutdated",
    "RowRefused",
    "SchemaChanged",
    "SecretNotProved",
    "SlotActive",
    "SlotLost",
    "SlotMissing",
    "SourceAuthFailed",
    "SourceError",
    "SourceExists",
    "SourceInUse",
    "SourceNotPermitted",
    "SourceNotReady",
    "SourceNotSuited",
    "SourceUnreachable",
    "SpoolFull",
    "StaleIncarnation",
    "StaleToken",
    "StoreUnreachable",
    "Superseded",
    "TableRefused",
    "TableTruncated",
    "TimedOut",
    "TopicExists",
    "TopicNotAuthorized",
    "TopicTaken",
    "Unauthenticated",
    "UnknownBroker",
    "UnknownChangefeed",
    "UnknownGroup",
    "UnknownLeaderEpoch",
    "UnknownProducerId",
    "UnknownQuarantinedRow",
    "UnknownSource",
    "UnknownTable",
    "UnknownTopicId",
    "UnknownTopicOrPartition",
    "Unreachable",
    "UnsupportedForMessageFormat",
    "UnsupportedVersion",
    "UserError",
    "WriterIdNeeded",
    "WrongMediaType",
    "all_errors",
    "from_code",
]


def all_errors() -> dict[str, type[MillraceError]]:
    """Every class by its code; the most general one where two share a code."""
    found: dict[str, type[MillraceError]] = {}
    queue: list[type[MillraceError]] = [MillraceError]
    while queue:
        kind = queue.pop(0)
        found.setdefault(kind.code, kind)
        queue.extend(kind.__subclasses__())
    return found


def from_code(code: str, message: str) -> MillraceError:
    """The error a peer named, as ours to raise."""
    kind = all_errors().get(code, MillraceError)
    return kind(message)
