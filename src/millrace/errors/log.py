"""Topics, records, leaders, producers, groups: what the log says no to."""

from __future__ import annotations

from millrace.errors.base import Damaged, Refused, UserError


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


class UnknownBroker(UserError):
    code = "unknown_broker"
    http_status = 404


class BrokerInUse(UserError):
    """It lives, or partitions count it as a replica."""

    code = "broker_in_use"
    http_status = 409


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


class CorruptBatch(Damaged):
    """Bytes a client or a peer sent, or that a disk gave back, are not a whole, valid record batch."""

    code = "corrupt_message"
    retriable = True
    kafka_code = 2
    http_status = 400
