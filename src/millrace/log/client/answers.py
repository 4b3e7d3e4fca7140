"""What a broker's error code means to us, and how long something is tried again [L22]."""

from __future__ import annotations

from collections.abc import Iterable

from millrace import errors
from millrace.core.backoff import wait_after
from millrace.errors import MillraceError, TimedOut, Unreachable, UserError
from millrace.ops.ports import Random

BACKOFF_MIN_S = 0.02     # the first try again: leaders move within some milliseconds of the news
BACKOFF_MAX_S = 1.0

_CLASSES: Iterable[type[MillraceError]] = (
    errors.OffsetOutOfRange, errors.CorruptBatch, errors.UnknownTopicOrPartition, errors.LeaderNotAvailable,
    errors.NotLeader, errors.RequestTimedOut, errors.MessageTooLarge, errors.Unreachable, errors.InvalidTopicName,
    errors.NotEnoughReplicas, errors.NotEnoughReplicasAfterAppend, errors.InvalidRequiredAcks,
    errors.UnsupportedVersion, errors.TopicExists, errors.InvalidPartitions, errors.InvalidReplicationFactor,
    errors.InvalidAssignment, errors.InvalidTopicConfig, errors.NotController, errors.InvalidRequest,
    errors.UnsupportedForMessageFormat, errors.PolicyViolation, errors.OutOfOrderSequence, errors.DuplicateSequence,
    errors.InvalidProducerEpoch, errors.DiskFailed, errors.UnknownProducerId, errors.FencedLeaderEpoch,
    errors.UnknownLeaderEpoch, errors.OffsetNotAvailable, errors.InvalidRecord, errors.UnknownTopicId,
    errors.SecretNotProved, errors.TopicNotAuthorized, errors.ClusterNotAuthorized,
)
_BY_CODE: dict[int, type[MillraceError]] = {kind.kafka_code: kind for kind in _CLASSES}
_TRY_AGAIN = frozenset({14, 15, 16})    # loading, not available, not the coordinator: of a group, of producer ids


def error_of(code: int, message: str | None = None) -> MillraceError:
    """The error a broker named, as ours to raise."""
    if code in _TRY_AGAIN:
        return Unreachable(message or "the broker is not ready")
    kind = _BY_CODE.get(code)
    if kind is None:
        return MillraceError(message or f"the broker answered with error {code}")
    return kind(message or kind.code)


def again(error: MillraceError) -> MillraceError:
    """A fresh copy: one instance raised in many places would collect all their tracebacks."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def given_up(last: MillraceError, *, what: str, after_s: float) -> MillraceError:
    """The end of trying. The user's own mistake stays what it is; else silence or refusal, with its last cause."""
    if isinstance(last, UserError):
        return again(last)
    kind = Unreachable if type(last) is Unreachable else TimedOut
    error = kind(f"{what}: given up after {after_s:.1f} s: {last}")
    error.__cause__ = last
    return error


class Backoff:
    """Jittered and growing; `reset` after a success."""

    __slots__ = ("_failures", "_random")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_s(self) -> float:
        self._failures += 1
        return self._random.uniform(*wait_after(self._failures, first_s=BACKOFF_MIN_S, most_s=BACKOFF_MAX_S))
