"""Topics, partitions and producer ids, as clients ask for them: translated for the controller, and answered only when
this broker has replayed the outcome, so that its own next Metadata shows it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from millrace.errors import MillraceError, from_code
from millrace.log.kafka import transactions
from millrace.log.kafka.configs import topic_config_entries
from millrace.log.kafka.shell import PRINCIPAL, Service
from millrace.model.messages import (
    AdminDone,
    AdminResult,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Message,
    NewPartitions,
    NewTopic,
)
from millrace.wire.kafka.codec import NO_UUID, Fields

TIMEOUT_MIN_S, TIMEOUT_MAX_S = 1.0, 60.0
TRY_AGAIN = 14              # "loading", the one error on which every client asks for its producer id again


async def ask(service: Service, request: Message, names: list[str], timeout_ms: int) -> list[AdminResult]:
    """One result per name, in order: the controller's, or what stopped us from getting it."""
    timeout_s = min(max(timeout_ms / 1000, TIMEOUT_MIN_S), TIMEOUT_MAX_S)
    try:
        done = await service.shell.ask_controller(request, timeout_s)
        assert isinstance(done, AdminDone)
        await service.shell.wait_for_index(done.index, timeout_s)
    except MillraceError as error:
        return [AdminResult(name, error.code, str(error)) for name in names]
    return list(done.results)


def error_fields(result: AdminResult) -> dict[str, Any]:
    if not result.code:
        return {"error_code": 0, "error_message": None}
    return {"error_code": from_code(result.code, "").kafka_code, "error_message": result.message}


async def create_topics(service: Service, version: int, fields: Fields) -> Fields:
    asked = fields["topics"]
    topics = tuple(
        NewTopic(
            name=topic["name"],
            partitions=topic["num_partitions"],
            replication_factor=topic["replication_factor"],
            configs={c["name"]: c["value"] for c in topic["configs"] if c["value"] is not None},
            assignment={a["partition"]: tuple(a["broker_ids"]) for a in topic["assignments"]},
        )
        for topic in asked
    )
    request = CreateTopics(topics=topics, validate_only=fields["validate_only"], internal=fields[PRINCIPAL].is_own)
    results = await ask(service, request, [topic["name"] for topic in asked], fields["timeout_ms"])
    return {"topics": [_created(service, result) for result in results]}


def _created(service: Service, result: AdminResult) -> Fields:
    made: Fields = {"name": result.name, **error_fields(result)}
    if not result.code:
        made["topic_id"] = result.topic_id
        made["num_partitions"], made["replication_factor"] = result.partitions, result.replication_factor
        topic = service.shell.cluster.topics_by_name.get(result.name)
        made["configs"] = topic_config_entries(service, topic) if topic else []
    return made


async def delete_topics(service: Service, version: int, fields: Fields) -> Fields:
    asked: list[tuple[str, UUID | None]]
    if version >= 6:
        asked = [(t["name"] or "", None if t["name"] else t["topic_id"]) for t in fields["topics"]]
    else:
        asked = [(name, None) for name in fields["topic_names"]]
    names = [name for name, _ in asked]
    request = DeleteTopics(topics=tuple(asked), internal=fields[PRINCIPAL].is_own)
    results = await ask(service, request, names, fields["timeout_ms"])
    return {
        "topics": [
            {"name": result.name or (None if version >= 6 else ""), "topic_id": result.topic_id or topic_id or NO_UUID,
             **error_fields(result)}
            for result, (_, topic_id) in zip(results, asked, strict=True)
        ]
    }


async def create_partitions(service: Service, version: int, fields: Fields) -> Fields:
    asked = fields["topics"]
    topics = tuple(
        NewPartitions(
            name=topic["name"], total=topic["count"],
            assignment=tuple(tuple(a["broker_ids"]) for a in topic["assignments"] or ()),
        )
        for topic in asked
    )
    request = CreatePartitions(topics=topics, validate_only=fields["validate_only"])
    results = await ask(service, request, [topic["name"] for topic in asked], fields["timeout_ms"])
    return {"topics": [{"name": result.name, **error_fields(result)} for result in results]}


async def init_producer_id(service: Service, version: int, fields: Fields) -> Fields:
    """An id nobody had before. A producer that lost track of its old one gets a new one, too."""
    if fields["transactional_id"] is not None:
        return transactions.producer_id(fields)
    try:
        return {"producer_id": await service.shell.next_producer_id(), "producer_epoch": 0}
    except MillraceError as error:
        return {"error_code": TRY_AGAIN if error.retriable else error.kafka_code}
