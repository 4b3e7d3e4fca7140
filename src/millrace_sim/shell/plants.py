"""Known flaws, planted into the brokers of a shell world one at a time, to show that its checkers bite.

In: a name of `PLANTS`. Out: the product's code with that one mistake, until the context ends. Only the simulation can
do this; the product has no switch for the ones patched here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from millrace.core import floor_calls
from millrace.core.flaws import Flaws
from millrace.core.floors import Floors
from millrace.core.producers import Producers
from millrace.core.replication import Replica
from millrace.log import keeper
from millrace.log.files.partition_log import PartitionLog
from millrace.log.partition import Partition
from millrace_sim.disk import SimDisk

Patch = tuple[Any, str, Any]


def _core(name: str) -> Callable[[], list[Patch]]:
    return lambda: [(keeper, "Replica", partial(Replica, flaws=Flaws(**{name: True})))]


def _ack_when_written() -> list[Patch]:
    """acks=all answered as soon as the leader alone has it."""
    original = Partition.when_acked

    def when_acked(self: Partition, end: int, *, acks: int, deadline: float, done: Any) -> None:
        original(self, end, acks=1 if acks == -1 else acks, deadline=deadline, done=done)

    return [(Partition, "when_acked", when_acked)]


def _never_sync() -> list[Patch]:
    """Records are reported durable, and nothing was done to make them so."""
    original = SimDisk.sync

    def sync(self: SimDisk, fd: int) -> None:
        path = self.path_of(fd)
        if "/logs/" not in path and "journal" not in path:
            original(self, fd)

    return [(SimDisk, "sync", sync)]


def _forget_sequences() -> list[Patch]:
    """Repeats of idempotent producers are appended again, fenced writers go on."""
    return [(Producers, "check", lambda self, *args, **kw: None)]


def _serve_uncommitted() -> list[Patch]:
    """Consumers are given everything the leader has."""
    original = Partition.read

    def read(self: Partition, offset: int, max_bytes: int, *, current_leader_epoch: int = -1) -> Any:
        hw, self.replica.hw = self.replica.hw, self.log.log_end
        try:
            return original(self, offset, max_bytes, current_leader_epoch=current_leader_epoch)
        finally:
            self.replica.hw = hw

    return [(Partition, "read", read)]


def _cut_above_floor() -> list[Patch]:
    """The controller records log starts whatever floors stand there, and leaders do not look at them either."""
    return [
        (floor_calls, "_cut", lambda state, broker, cut, tp, gone, flaws: (cut.start, "")),
        (Floors, "on", lambda self, tp: {}),
    ]


def _forget_writers() -> list[Patch]:
    """A follower that starts over is told nothing of the writers whose batches went."""
    return [(PartitionLog, "producers_for_restart", lambda self, committed: b"")]


PLANTS: dict[str, Callable[[], list[Patch]]] = {
    "credit_on_send": _core("credit_on_send"),
    "hw_over_known": _core("hw_over_known"),
    "no_truncation": _core("no_truncation"),
    "ack_when_written": _ack_when_written,
    "never_sync": _never_sync,
    "forget_sequences": _forget_sequences,
    "serve_uncommitted": _serve_uncommitted,
    "cut_above_floor": _cut_above_floor,
    "forget_writers": _forget_writers,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    patches = PLANTS[name]() if name else []
    kept = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in patches]
    for owner, attribute, value in patches:
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, value in kept:
            setattr(owner, attribute, value)
