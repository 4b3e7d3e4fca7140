"""Settings of topics (and, to be read only, of brokers): DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from dataclasses import fields as fields_of

from millrace.core.admin import is_internal
from millrace.core.cluster import ClusterState, TopicState
from millrace.core.retention import RETENTION_BYTES, RETENTION_MS, Defaults, settings_of
from millrace.core.topic_configs import TOPIC_CONFIGS, TopicConfig
from millrace.errors import InvalidRequest, MillraceError, UnknownTopicOrPartition, from_code
from millrace.log.kafka.principal import Principal, refuse_topic
from millrace.log.kafka.shell import PRINCIPAL, Service
from millrace.model.messages import AdminDone, AdminResult, AlterConfigs, ConfigEdit
from millrace.wire.kafka.codec import Fields

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
FROM_TOPIC, FROM_BROKER, FROM_DEFAULT = 1, 4, 5    # Kafka's config sources
TEXT, LONG, LIST = 2, 5, 7                         # Kafka's config types
TIMEOUT_S = 30.0


def topic_config_entries(service: Service, topic: TopicState) -> list[Fields]:
    return [_entry(service, topic, config) for config in TOPIC_CONFIGS.values()]


def retention_values(cluster: ClusterState, topic: TopicState, defaults: Defaults) -> dict[str, int]:
    """What is in force where the topic may say nothing."""
    found = settings_of(internal=is_internal(topic.name), values=topic.values, defaults=defaults)
    return {RETENTION_MS: found.retention_ms, RETENTION_BYTES: found.retention_bytes}


def _entry(service: Service, topic: TopicState, config: TopicConfig) -> Fields:
    cluster = service.shell.cluster
    value = cluster.topic_config(topic.topic_id, config.key)
    if value is None:
        value = retention_values(cluster, topic, service.shell.config.retention.defaults).get(config.key)
    source = FROM_TOPIC if config.key in topic.configs else FROM_DEFAULT
    text = None if value is None else str(value)
    kind = LONG if config.is_number else LIST if config.key == "cleanup.policy" else TEXT
    return {
        "name": config.key, "value": text, "config_source": source, "config_type": kind,
        "documentation": config.doc, "synonyms": [{"name": config.key, "value": text, "source": source}],
    }


def _broker_entries(service: Service) -> list[Fields]:
    config, options = service.shell.config, service.options
    values = {field.name: str(getattr(config, field.name)) for field in fields_of(config)
              if field.repr and field.name != "retention"}       # what no repr shows is a key: nobody is told
    values["log.retention.ms"] = str(config.retention.defaults.retention_ms)
    values["log.retention.bytes"] = str(config.retention.defaults.retention_bytes)
    values["auto.create.topics.enable"] = str(options.auto_create_topics).lower()
    return [
        {"name": name, "value": value, "read_only": True, "config_source": FROM_BROKER, "config_type": TEXT,
         "synonyms": []}
        for name, value in sorted(values.items())
    ]


def describe_configs(service: Service, version: int, fields: Fields) -> Fields:
    return {"results": [_described(service, fields, resource) for resource in fields["resources"]]}


def _described(service: Service, fields: Fields, resource: Fields) -> Fields:
    answer: Fields = {"resource_type": resource["resource_type"], "resource_name": resource["resource_name"]}
    try:
        entries = _entries_of(service, fields[PRINCIPAL], resource)
    except MillraceError as error:
        return {**answer, "error_code": error.kafka_code, "error_message": str(error)}
    keys = resource["keys"]
    answer["configs"] = [
        {
            **entry,
            "synonyms": entry["synonyms"] if fields["include_synonyms"] else [],
            "documentation": entry.get("documentation") if fields.get("include_documentation") else None,
        }
        for entry in entries
        if keys is None or entry["name"] in keys
    ]
    return answer


def _entries_of(service: Service, principal: Principal, resource: Fields) -> list[Fields]:
    kind, name = resource["resource_type"], resource["resource_name"]
    shell = service.shell
    if kind == TOPIC:
        refuse_topic(principal, name)
        topic = shell.cluster.topics_by_name.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
        return topic_config_entries(service, topic)
    if kind == BROKER:
        if name != str(shell.id):
            raise InvalidRequest(f"ask broker {name} for its own settings, this is broker {shell.id}")
        return _broker_entries(service)
    raise InvalidRequest(f"resources of type {kind} have no settings here")


# -- changing ------------------------------------------------------------------------------------------------------


async def alter_configs(service: Service, version: int, fields: Fields) -> Fields:
    """The old call: what is not named goes back to its default."""
    return await _alter(service, fields, replace=True)


async def incremental_alter_configs(service: Service, version: int, fields: Fields) -> Fields:
    return await _alter(service, fields, replace=False)


async def _alter(service: Service, fields: Fields, *, replace: bool) -> Fields:
    edits: list[ConfigEdit] = []
    refused: dict[int, MillraceError] = {}
    for at, resource in enumerate(fields["resources"]):
        try:
            edits += _edits(resource)
        except InvalidRequest as error:
            refused[at] = error
    names = [r["resource_name"] for at, r in enumerate(fields["resources"]) if at not in refused]
    request = AlterConfigs(
        edits=tuple(edits), topics=tuple(dict.fromkeys(names)), replace=replace, validate_only=fields["validate_only"]
    )
    results = await _ask(service, request) if names else {}
    return {
        "responses": [
            _altered(resource, refused.get(at) or results.get(resource["resource_name"]))
            for at, resource in enumerate(fields["resources"])
        ]
    }


async def _ask(service: Service, request: AlterConfigs) -> dict[str, MillraceError | None]:
    try:
        done = await service.shell.ask_controller(request, TIMEOUT_S)
        assert isinstance(done, AdminDone)
        await service.shell.wait_for_index(done.index, TIMEOUT_S)
    except MillraceError as error:
        return dict.fromkeys(request.topics, error)
    return {result.name: _error_of(result) for result in done.results}


def _error_of(result: AdminResult) -> MillraceError | None:
    return from_code(result.code, result.message) if result.code else None


def _edits(resource: Fields) -> list[ConfigEdit]:
    if resource["resource_type"] != TOPIC:
        raise InvalidRequest("only topics have settings that can be changed; brokers read theirs from their file")
    name = resource["resource_name"]
    edits = []
    for config in resource["configs"]:
        operation = config.get("operation", SET)
        if operation not in (SET, DELETE):
            raise InvalidRequest(f"{config['name']}: set or delete it, lists are written as a whole")
        edits.append(ConfigEdit(name, config["name"], config["value"] if operation == SET else None))
    return edits


def _altered(resource: Fields, error: MillraceError | None) -> Fields:
    return {
        "resource_type": resource["resource_type"], "resource_name": resource["resource_name"],
        "error_code": error.kafka_code if error else 0, "error_message": str(error) if error else None,
    }
