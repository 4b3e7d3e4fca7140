"""Where the rows of each table of a changefeed go, checked when it is made and when tables come or change.

    spec ─▶ check_sink: the URI and what settings say of topics and partitions, without any table
    tables as the sink sees them ─▶ routes: topic and routing of each; tables that must not share a topic are refused
    a version of a table ─▶ Router: what is said of it, its topic, its routing; for whoever moves its rows
    spec, tables ─▶ claims: topics that the changefeed writes to (core.feeds.topic_claims says whose they are)

In: a spec, tables. Out: a KafkaSink, routes, claims. Errors: InvalidSinkUri, InvalidTopicName, InvalidRequest, each
with the field and the place shown, or with the tables named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from millrace.core.feeds.choice import NOTHING_SAID, Entries, Rules
from millrace.core.feeds.topic_claims import Claim
from millrace.core.marked import marked
from millrace.errors import InvalidRequest, InvalidTopicName
from millrace.model.changefeeds import ChangefeedSpec, TableSettings
from millrace.model.tables import Oid, TableSchema
from millrace.sink.kafka.routing import Routing, parse_routing, refuse_unless_routable
from millrace.sink.kafka.topics import TopicTemplate, parse_template
from millrace.sink.uri import KafkaSink, parse_sink

T = TypeVar("T")


class Route(NamedTuple):
    topic: str
    routing: Routing


class Routed(NamedTuple):
    """A table as the sink sees it, with what is said of it. `where`: names the settings in messages."""

    table: TableSchema
    settings: TableSettings
    where: str = "sink"


class Router:
    """Of one changefeed, table by table. A table that is renamed may have another topic, and other settings."""

    def __init__(self, source: str, sink: KafkaSink, settings: Sequence[TableSettings]) -> None:
        self._source, self._sink, self._settings = source, sink, settings
        self._entries = Entries(settings)
        self._known: dict[tuple[str, str], Route] = {}           # asked for every portion of rows

    def said(self, table: TableSchema) -> Routed:
        entry = self._entries.entry(table.schema, table.name)
        if entry is None:
            return Routed(table, NOTHING_SAID)
        return Routed(table, self._settings[entry], f"settings[{entry}]")

    def route(self, table: TableSchema) -> Route:
        name = (table.schema, table.name)
        if name not in self._known:
            _, settings, where = self.said(table)
            topic = _template(where, settings, self._sink).topic(self._source, *name)
            self._known[name] = Route(topic, _routing(where, settings, self._sink))
        return self._known[name]


def check_sink(spec: ChangefeedSpec) -> KafkaSink:
    sink = parse_sink(spec.sink)
    for i, settings in enumerate(spec.settings):
        _template(f"settings[{i}]", settings, sink)
        _routing(f"settings[{i}]", settings, sink)
    return sink


def routes(source: str, sink: KafkaSink, tables: Iterable[Routed]) -> dict[Oid, Route]:
    found: dict[Oid, Route] = {}
    first: dict[str, TableSchema] = {}
    for table, settings, where in tables:
        routing = _routing(where, settings, sink)
        refuse_unless_routable(routing, table)
        topic = _template(where, settings, sink).topic(source, table.schema, table.name)
        other = first.setdefault(topic, table)
        if other is not table and sink.tombstones and table.keys and other.keys:
            raise InvalidRequest(
                f"{other.full_name} and {table.full_name} share topic {topic!r}, where a tombstone for a key of one "
                "would remove the other's row with that key: give each a topic ({table} in the template), or "
                "tombstones=false")
        found[table.oid] = Route(topic, routing)
    return found


class Claims:
    """Of one changefeed. A version of a table is judged once."""

    def __init__(self, spec: ChangefeedSpec) -> None:
        self._spec, self._rules = spec, Rules(spec)
        self._router = Router(spec.source, check_sink(spec), spec.settings)
        self._known: dict[UUID, Claim | None] = {}

    def of(self, table: TableSchema) -> Claim | None:
        """None: it does not take it."""
        if table.id not in self._known:
            takes = self._rules.takes(table.schema, table.name)
            self._known[table.id] = Claim(
                self._router.route(table).topic, self._spec.id, table.full_name) if takes else None
        return self._known[table.id]


def claims(spec: ChangefeedSpec, tables: Iterable[TableSchema]) -> list[Claim]:
    known = Claims(spec)
    return [claim for table in tables if (claim := known.of(table)) is not None]


def may_meet(one: ChangefeedSpec, other: ChangefeedSpec) -> bool:
    """Whether any two tables could go to one topic, by how the names of the topics begin."""
    return any(mine.startswith(yours) or yours.startswith(mine)
               for mine in _beginnings(one) for yours in _beginnings(other))


def _beginnings(spec: ChangefeedSpec) -> set[str]:
    sink = check_sink(spec)
    templates = [sink.topic, *(_template("", settings, sink) for settings in spec.settings)]
    return {template.text.replace("{source}", spec.source).partition("{")[0] for template in templates}


def _template(where: str, settings: TableSettings, sink: KafkaSink) -> TopicTemplate:
    return _read(f"{where}.topic", settings.topic, parse_template) if settings.topic else sink.topic


def _routing(where: str, settings: TableSettings, sink: KafkaSink) -> Routing:
    by = settings.partition_by
    return _read(f"{where}.partition_by", by, parse_routing) if by else sink.partition


def _read(where: str, text: str, reader: Callable[[str], T]) -> T:
    try:
        return reader(text)
    except (InvalidTopicName, InvalidRequest) as error:
        raise type(error)(marked(where, text, error.at, error.why), at=error.at, why=error.why) from None
