"""Produce: append every partition's batches now, answer once when all of them are as safe as was asked.

In: a frame. Out: one answer per request, after acks=1: on this broker's disk, acks=all: committed; acks=0: nothing,
ever, and a closed connection when something failed, which is the only way to tell such a client. Errors before the
append say that nothing was written; after it none does: only an idempotent producer may repeat safely.
"""

from __future__ import annotations

from uuid import UUID

import structlog

from millrace import limits
from millrace.errors import (
    InvalidRecord,
    InvalidRequiredAcks,
    MillraceError,
    UnsupportedVersion,
)
from millrace.log.files.partition_log import Appended
from millrace.log.kafka.client import Client, Slot
from millrace.log.kafka.lookup import leader_to_tell, partition_for
from millrace.log.kafka.principal import Principal
from millrace.log.kafka.shell import Service
from millrace.log.kafka.transactions import NO_TRANSACTIONS
from millrace.log.partition import Partition
from millrace.wire.kafka import hot

log = structlog.get_logger(__name__)

ACKS = (-1, 0, 1)


class _Pending:
    """One request under way: counts its partitions down."""

    __slots__ = ("acks", "began", "correlation", "left", "service", "slot", "topics", "version")

    def __init__(self, service: Service, slot: Slot, header: hot.Header, *, acks: int, began: float) -> None:
        self.service, self.slot = service, slot
        self.acks, self.began = acks, began
        self.version, self.correlation = header.version, header.correlation
        self.left = 1                                   # the parsing itself, so that no early answer ends it
        self.topics: list[tuple[bytes, list[hot.Produced]]] = []

    def done_one(self) -> None:
        self.left -= 1
        if self.left == 0:
            service = self.service
            service.stats.ack_latency[self.acks].observe(service.shell.ports.clock.now() - self.began)
            self.slot.answer([hot.produce_response(self.version, self.correlation, self.topics)])


class _Entry:
    """One partition of a request, waiting to be acknowledged."""

    __slots__ = ("appended", "at", "partition", "pending", "results", "topic")

    def __init__(
        self, pending: _Pending, results: list[hot.Produced], topic: bytes | UUID, partition: Partition,
        appended: Appended,
    ) -> None:
        self.pending, self.results, self.topic = pending, results, topic
        self.partition, self.appended = partition, appended
        self.at = len(results)
        results.append(hot.Produced(partition.index, -1))

    def __call__(self, error: MillraceError | None) -> None:
        pending, index = self.pending, self.partition.index
        if error is None:
            self.results[self.at] = hot.Produced(index, 0, self.appended.base, self.partition.log.log_start)
        else:
            self.results[self.at] = refusal(pending.service, self.topic, index, error)
        pending.done_one()


def handle(service: Service, client: Client, header: hot.Header, frame: memoryview) -> None:
    request = hot.parse_produce(frame, header.body, header.version)
    error = _refuse_request(request)
    if request.acks == 0:
        _handle_unanswered(service, client, header, request, error)
        return
    now = service.shell.ports.clock.now()
    pending = _Pending(service, client.slot(), header, acks=1 if request.acks == 1 else -1, began=now)
    deadline = now + min(max(request.timeout_ms, 0) / 1000, limits.PRODUCE_TIMEOUT_MAX_S)
    for name, entries in request.topics:
        topic = UUID(bytes=name) if header.version >= hot.PRODUCE_IDS else name
        results: list[hot.Produced] = []
        pending.topics.append((name, results))
        for index, records in entries:
            try:
                if error is not None:
                    raise error
                partition, appended = _append(service, topic, index, records, request.acks, client.principal)
            except MillraceError as refused:
                results.append(refusal(service, topic, index, refused))
                continue
            pending.left += 1
            partition.when_acked(
                appended.end, acks=request.acks, deadline=deadline,
                done=_Entry(pending, results, topic, partition, appended),
            )
    pending.done_one()


def _handle_unanswered(
    service: Service, client: Client, header: hot.Header, request: hot.Produce, error: MillraceError | None
) -> None:
    for name, entries in request.topics:
        topic = UUID(bytes=name) if header.version >= hot.PRODUCE_IDS else name
        for index, records in entries:
            try:
                if error is not None:
                    raise error
                _append(service, topic, index, records, 0, client.principal)
            except MillraceError as refused:
                service.stats.produce_errors += 1
                error = refused
    if error is not None:
        log.info("connection closed: a write with acks=0 failed", peer=client.conn.peername, code=error.code,
                 error=str(error))
        client.close()


def _refuse_request(request: hot.Produce) -> MillraceError | None:
    if request.acks not in ACKS:
        return InvalidRequiredAcks(f"acks {request.acks}: give 0, 1 or -1 (all)")
    if request.transactional_id is not None:
        return UnsupportedVersion(NO_TRANSACTIONS)
    return None


def _append(
    service: Service, topic: bytes | UUID, index: int, records: memoryview | None, acks: int,
    principal: Principal,
) -> tuple[Partition, Appended]:
    partition = partition_for(service.shell, principal, topic, index)
    if not records:
        raise InvalidRecord("no records")
    try:
        appended = partition.append(records, acks=acks)
    except MillraceError:
        raise
    except Exception as error:                          # ours: the others of this request go on
        service.stats.handler_failures += 1
        log.exception("an append failed", partition=repr(partition))
        raise MillraceError(f"{type(error).__name__} in the broker, see its log") from error
    service.stats.produced_bytes += len(records)
    return partition, appended


def refusal(service: Service, topic: bytes | UUID, index: int, error: MillraceError) -> hot.Produced:
    service.stats.produce_errors += 1
    leader = leader_to_tell(service.shell, error, topic, index)
    return hot.Produced(index, error.kafka_code, message=str(error), leader=leader)
