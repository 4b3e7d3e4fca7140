"""Messages of the simulated world that are not the controller's: replication, produce, and the envelope of calls."""

from __future__ import annotations

from typing import NamedTuple

from millrace.model.ids import TopicPartition
from millrace.model.messages import Message
from millrace_sim.machines.disk import Entry

STORE = 100
CLIENTS = 200


class Call(NamedTuple):
    """A request to the controller."""

    call_id: int
    message: Message


class Reply(NamedTuple):
    call_id: int
    message: Message


class Fetch(NamedTuple):
    tp: TopicPartition
    fetch_id: int
    incarnation: int
    epoch: int
    offset: int
    last_epoch: int
    hw: int
    log_start: int


class Data(NamedTuple):
    tp: TopicPartition
    fetch_id: int
    epoch: int
    base: int
    entries: tuple[Entry, ...]
    hw: int
    log_start: int


class Parted(NamedTuple):
    tp: TopicPartition
    fetch_id: int
    epoch: int
    at_epoch: int
    end: int


class StartOver(NamedTuple):
    """What was asked for is gone; `producers` is what cannot be learned from the rest."""

    tp: TopicPartition
    fetch_id: int
    epoch: int
    log_start: int
    producers: bytes


class Produce(NamedTuple):
    """`entry.epoch` is the leader's to fill in."""

    tp: TopicPartition
    request_id: int
    acks: int
    entry: Entry


class Produced(NamedTuple):
    request_id: int
    offset: int


class NotProduced(NamedTuple):
    request_id: int
    code: str
    leader: int
