"""The one tree of errors. The class answers: whose fault, try again?, which code.

    MillraceError
    ├── UserError ............. bad input; the message names the key and the remedy, nothing was changed
    │   ├── ConfigError          exit 2
    │   ├── InvalidRequest, InvalidTopicName, InvalidPartitions, InvalidReplicationFactor, InvalidConfig …
    │   ├── UnknownTopicOrPartition, TopicExists …
    │   └── SourceError          the database of a source: SourceAuthFailed, SourceNotPermitted, SlotLost …
    ├── Refused ............... a rule of the protocol said no (stale epoch, not leader, lease over)
    │   ├── NotLeader, FencedLeaderEpoch, UnknownLeaderEpoch, NotEnoughReplicas …
    │   ├── Deposed, OfficeHeld, StaleIncarnation, StaleToken
    │   └── PositionMissing, Superseded, PositionMoved, ClaimRefused …
    ├── Unreachable ........... the other side did not answer (retriable)
    ├── DeliveryError ......... a sink did not take what it was given: DeliveryTransient, RowRefused, TableRefused
    └── Damaged ............... bytes that are not what was written
        └── CorruptBatch, NewerFormat, DiskFailed

`kafka_code` is what a Kafka client is told, `http_status` what an HTTP client is told, `code` what everyone reads.
"""

from __future__ import annotations

from typing import ClassVar


class MillraceError(Exception):
    code: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500
    kafka_code: ClassVar[int] = -1


class UserError(MillraceError):
    """Where the trouble is in a text, `at` tells the place in it and `why` the trouble, for those who show the text."""

    code = "invalid_request"
    http_status = 400
    kafka_code = 42

    def __init__(self, *said: object, at: int = 0, why: str = "") -> None:
        super().__init__(*said)
        self.at, self.why = at, why


class ConfigError(UserError):
    code = "invalid_configuration"


class InvalidRequest(UserError):
    code = "invalid_request"


class InvalidTopicName(UserError):
    code = "invalid_topic_name"
    kafka_code = 17


class InvalidPartitions(UserError):
    code = "invalid_partitions"
    kafka_code = 37


class InvalidReplicationFactor(UserError):
    code = "invalid_replication_factor"
    kafka_code = 38


class InvalidAssignment(UserError):
    code = "invalid_replica_assignment"
    kafka_code = 39


class InvalidTopicConfig(UserError):
    code = "invalid_topic_config"
    kafka_code = 40


class PolicyViolation(UserError):
    code = "policy_violation"
    kafka_code = 44


class TopicExists(UserError):
    code = "topic_exists"
    http_status = 409
    kafka_code = 36


class UnknownTopicOrPartition(UserError):
    code = "unknown_topic_or_partition"
    http_status = 404
    retriable = True
    kafka_code = 3


class UnknownTopicId(UserError):
    code = "unknown_topic_id"
    http_status = 404
    retriable = True
    kafka_code = 100


class UnknownGroup(UserError):
    code = "unknown_group"
    http_status = 404
    kafka_code = 69


class SourceExists(UserError):
    code = "source_exists"
    http_status = 409


class UnknownSource(UserError):
    code = "unknown_source"
    http_status = 404


class ChangefeedExists(UserError):
    code = "changefeed_exists"
    http_status = 409


class UnknownChangefeed(UserError):
    code = "unknown_changefeed"
    http_status = 404


class UnknownTable(UserError):
    code = "unknown_table"
    http_status = 404


class InvalidTableRule(UserError):
    """The message shows the rule and where in it the trouble is."""

    code = "invalid_table_rule"


class InvalidExpression(UserError):
    """A filter or projection in SQL; the message shows the expression and where in it the trouble is."""

    code = "invalid_expression"


class InvalidSinkUri(UserError):
    """The message shows the URI and where in it the trouble is."""

    code = "invalid_sink_uri"


class InvalidOption(UserError):
    """An option of the Spark data source; the message names it and what it may be."""

    code = "invalid_option"


class SchemaChanged(UserError):
    """Rows that the schema of this query cannot hold; the message says from where on and how to go on."""

    code = "schema_changed"
    http_status = 409


class TableTruncated(UserError):
    """A truncation stands in the rows that were asked for, and the reader has not said what it makes of it."""

    code = "table_truncated"
    http_status = 409


class CopyNotReadable(UserError):
    """Rows of a copy that cannot be told from those of the changes around it."""

    code = "copy_not_readable"
    http_status = 409


class UnsupportedVersion(UserError):
    code = "unsupported_version"
    kafka_code = 35


class InvalidRequiredAcks(UserError):
    code = "invalid_required_acks"
    kafka_code = 21


class MessageTooLarge(UserError):
    code = "message_too_large"
    http_status = 413
    kafka_code = 10


class InvalidRecord(UserError):
    """A whole batch, but one a client may not write."""

    code = "invalid_record"
    kafka_code = 87


class UnsupportedForMessageFormat(UserError):
    code = "unsupported_for_message_format"
    kafka_code = 43


class SourceError(UserError):
    """The database of a source said no for a reason that somebody must remove; the message says how."""

    code = "source_refused"
    http_status = 422


class SourceAuthFailed(SourceError):
    """Wrong user, password, database or certificate."""

    code = "source_auth_failed"


class SourceNotPermitted(SourceError):
    """The role may not do this; the message holds the SQL for somebody who may."""

    code = "source_not_permitted"


class SourceNotSuited(SourceError):
    """The server or a table is not set up for logical replication (version, wal_level, keys); see `doctor`."""

    code = "source_not_suited"


class PublicationMissing(SourceError):
    """Our publication is gone: streaming on would lose rows silently."""

    code = "publication_missing"


class SlotMissing(SourceError):
    code = "slot_missing"


class SlotLost(SourceError):
    """The server has thrown away WAL that the slot still needed: what was in it comes only by copies [S9]."""

    code = "slot_lost"


class Refused(MillraceError):
    code = "refused"
    retriable = True
    http_status = 409


class NotLeader(Refused):
    code = "not_leader"
    http_status = 421
    kafka_code = 6


class LeaderNotAvailable(Refused):
    code = "leader_not_available"
    http_status = 503
    kafka_code = 5


class FencedLeaderEpoch(Refused):
    code = "fenced_leader_epoch"
    kafka_code = 74


class UnknownLeaderEpoch(Refused):
    code = "unknown_leader_epoch"
    kafka_code = 75


class OffsetOutOfRange(Refused):
    code = "offset_out_of_range"
    retriable = False
    kafka_code = 1


class DataLost(Refused):
    """Changes that were asked for are no longer in the log, or never came there."""

    code = "data_lost"
    retriable = False


class CopyUnderWay(Refused):
    """The table's initial copy is not complete yet."""

    code = "copy_under_way"


class OffsetNotAvailable(Refused):
    code = "offset_not_available"
    kafka_code = 78


class NotEnoughReplicas(Refused):
    code = "not_enough_replicas"
    http_status = 503
    kafka_code = 19


class NotEnoughReplicasAfterAppend(Refused):
    code = "not_enough_replicas_after_append"
    http_status = 503
    kafka_code = 20


class RequestTimedOut(Refused):
    code = "request_timed_out"
    http_status = 504
    kafka_code = 7


class NotController(Refused):
    code = "not_controller"
    http_status = 421
    kafka_code = 41


class NotCoordinator(Refused):
    code = "not_coordinator"
    http_status = 421


class OutOfOrderSequence(Refused):
    code = "out_of_order_sequence_number"
    retriable = False
    kafka_code = 45


class DuplicateSequence(Refused):
    code = "duplicate_sequence_number"
    retriable = False
    kafka_code = 46


class InvalidProducerEpoch(Refused):
    code = "invalid_producer_epoch"
    retriable = False
    kafka_code = 47


class UnknownProducerId(Refused):
    code = "unknown_producer_id"
    retriable = False
    kafka_code = 59


class StaleIncarnation(Refused):
    """Another start of the same broker is registered: this process must end."""

    code = "stale_incarnation"
    retriable = False
    kafka_code = 77


class StaleToken(Refused):
    code = "stale_token"
    retriable = False


class Deposed(Refused):
    """The office is no longer ours: another holder, or a higher token."""

    code = "deposed"
    retriable = False


class OfficeHeld(Refused):
    code = "office_held"


class IndexConflict(Refused):
    """The history moved on: read it again before deciding."""

    code = "index_conflict"


class IndexCompacted(Refused):
    """The records asked for are only in the snapshot now: load it, then read after its index."""

    code = "index_compacted"


class SlotActive(Refused):
    """Another connection streams from the slot."""

    code = "slot_active"


class PositionMissing(Refused):
    """No position is stored. Never read as zero: somebody must say where to begin [P3]."""

    code = "position_missing"
    retriable = False
    http_status = 404


class PositionExists(Refused):
    code = "position_exists"
    retriable = False


class Superseded(Refused):
    """The position carries a greater epoch, or was closed: this dispatcher removes itself [C3]."""

    code = "superseded"
    retriable = False


class PositionMoved(Refused):
    """The position is not the `from` of this commit, or its ends are behind those stored: nothing was changed [P3]."""

    code = "position_moved"
    retriable = False


class ClaimRefused(Refused):
    """Another execution has claimed this plan, or a later one: write nothing, return "unknown" [P5]."""

    code = "claim_refused"
    retriable = False


class WriterIdNeeded(Refused):
    """The 16 bits of writer epoch are used up: ask again with a new writer id."""

    code = "writer_id_needed"


class Unreachable(MillraceError):
    code = "unreachable"
    retriable = True
    http_status = 503
    kafka_code = 13


class StoreUnreachable(Unreachable):
    code = "store_unreachable"


class SourceUnreachable(Unreachable):
    """The database of a source did not answer, or broke the connection."""

    code = "source_unreachable"


class SourceNotReady(SourceUnreachable):
    """It answered, but not yet or not now: starting, stopping, in recovery, out of connections or slots."""

    code = "source_not_ready"


class TimedOut(Unreachable):
    code = "timed_out"
    http_status = 504
    kafka_code = 7


class DeliveryError(MillraceError):
    """A sink did not take what it was given. The classes below answer what to do about it [V1, C8]."""

    code = "delivery_failed"


class DeliveryTransient(DeliveryError):
    """May pass: reported for the dispatchers whose rows were in the message, and tried again there [V1]."""

    code = "delivery_transient"
    retriable = True
    http_status = 503


class RowRefused(DeliveryError):
    """This row and no other: it goes to the quarantine [P9]."""

    code = "row_refused"
    http_status = 422


class TableRefused(DeliveryError):
    """Nothing of this table can be written until somebody acts; the other tables go on."""

    code = "table_refused"
    http_status = 422


class Damaged(MillraceError):
    code = "damaged"
    kafka_code = 56


class OutOfOrder(Damaged):
    """A change came behind a later one of the same key: the log or its reader is wrong."""

    code = "out_of_order"


class CorruptBatch(Damaged):
    """Bytes a client or a peer sent, or that a disk gave back, are not a whole, valid record batch."""

    code = "corrupt_message"
    retriable = True
    kafka_code = 2
    http_status = 400


class Malformed(Damaged):
    """A frame or request that cannot be decoded. The only error a decoder raises."""

    code = "malformed"
    kafka_code = 42
    http_status = 400


class NewerFormat(Damaged):
    """Written by a newer millrace: refused rather than guessed."""

    code = "newer_format"


class DiskFailed(Damaged):
    """A write or sync failed: the file is not trusted again."""

    code = "storage_error"
    retriable = True


class DiskFull(DiskFailed):
    code = "disk_full"
    http_status = 507


class SpoolFull(DiskFull):
    """No room for a streamed transaction that has not committed yet: free the disk, or raise
    `logical_decoding_work_mem` on the server so that it streams less."""

    code = "spool_full"


class ForeignDirectory(ConfigError):
    """A data directory of another broker or another cluster."""

    code = "foreign_directory"


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
