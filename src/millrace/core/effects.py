"""Values that go in and out of a replica: what the controller decided, what the shell must do, what a fetch is told.

Tuples, because they are made on the way of every write; told apart by their type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from millrace.model.ids import BrokerId


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the controller's last record says of this partition."""

    leader: BrokerId
    leader_epoch: int
    partition_epoch: int
    isr: frozenset[BrokerId]
    replicas: tuple[BrokerId, ...]
    min_insync: int
    elr: frozenset[BrokerId] = frozenset()


# -- effects: what the shell must do or tell --------------------------------------------------------------------------


class HwMoved(NamedTuple):
    hw: int


class ProposeIsr(NamedTuple):
    """`incarnations` stand beside `isr`: the incarnation whose fetches were counted, as registered for the others."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[BrokerId, ...]
    incarnations: tuple[int, ...]


class BecameLeader(NamedTuple):
    epoch: int
    start: int


class BecameFollower(NamedTuple):
    """Fetch from `leader` (nobody when -1) in this epoch, also if it is the same broker as before."""

    leader: BrokerId
    epoch: int


class LostLeadership(NamedTuple):
    """Writers that wait for an acknowledgement of `epoch` are told NOT_LEADER."""

    epoch: int


class Truncate(NamedTuple):
    """Cut the log to `to`, then call `truncated`. `below_hw`: an alert. Below its log start the log restarts there."""

    to: int
    below_hw: bool


class Restart(NamedTuple):
    """The leader has removed all we could go on from: empty the log to start at `at`, then call `restarted`."""

    at: int


class AdvanceLogStart(NamedTuple):
    """The leader removed the front of its log."""

    to: int


class DiskEpochAhead(NamedTuple):
    """The log holds an epoch the controller does not know of: an error event; ask it to raise its own past it [L19].

    An assigned leader does not lead until then. A follower goes on; its log is cut as the leader's says."""

    disk_epoch: int
    leader_epoch: int


Effect = (
    HwMoved
    | ProposeIsr
    | BecameLeader
    | BecameFollower
    | LostLeadership
    | Truncate
    | Restart
    | AdvanceLogStart
    | DiskEpochAhead
)
Effects = Sequence[Effect]
NOTHING: Effects = ()


# -- answers to a follower's fetch ------------------------------------------------------------------------------------


class Serve(NamedTuple):
    """Send from `offset` up to the log's end."""

    offset: int
    hw: int
    effects: Effects = NOTHING


class Diverged(NamedTuple):
    """The logs part: of epochs up to `epoch` the leader's end at `end`. Nothing was credited."""

    epoch: int
    end: int
    effects: Effects = NOTHING


class Fence(NamedTuple):
    """Refused: `error` is a Kafka code (NOT_LEADER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH)."""

    error: int
    epoch: int
    effects: Effects = NOTHING


class OutOfRange(NamedTuple):
    log_start: int
    effects: Effects = NOTHING


Answer = Serve | Diverged | Fence | OutOfRange
