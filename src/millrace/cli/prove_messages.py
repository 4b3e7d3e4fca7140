"""Messages of a changefeed in debezium-json as a consumer understands them, and what happened in the database.

In: records of partitions. Out: `Seen`, one per message, and `Happened`, one per change that a witness saw. Promise:
nothing is dropped in silence: a message that cannot be understood is `Seen` with why.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from millrace.errors import MillraceError
from millrace.model.tables import Oid, Place
from millrace.sink.kafka.headers import OLD_KEY, Written, written
from millrace.sink.kafka.watermark import PREFIX
from millrace.wire.records import Record

Name = tuple[str, str]                 # schema, table
Row = dict[str, Any]                   # column -> JSON value
Texts = tuple[str | None, ...]
Where = tuple[str, int]                # topic, partition
Kind = Literal["row", "truncate", "schema", "tombstone", "watermark", "malformed"]
UNAVAILABLE = "__debezium_unavailable_value"
CREATE, ALTER, DROP, TRUNCATE = "create", "alter", "drop", "t"
INSERT, UPDATE, DELETE, READ = "c", "u", "d", "r"


class Happened(NamedTuple):
    """One change of one table as the database committed it. `key`: texts of the key's columns, None: it has none.
    `columns`, `types`: of the table from this change on. `before`, `after`: what its message must show, by column.
    `told`: "once": in one message; "joining": of a table that joined later, whose first copy may stand for it;
    "apart": a row of which no message tells by itself, only copies show it."""

    oid: Oid
    table: Name
    place: Place
    op: str
    key: Texts | None
    columns: tuple[str, ...]
    types: tuple[int, ...] = ()
    before: Row | None = None
    after: Row | None = None
    old_key: Texts | None = None       # of the insert of a key update
    told: Literal["once", "joining", "apart"] = "once"


class Seen(NamedTuple):
    """One message. `columns`, `types`: of a schema change the table's, of a row the columns that it shows."""

    topic: str
    partition: int
    offset: int
    kind: Kind
    table: Name = ("", "")
    place: Place = Place(-1, -1)
    op: str = ""
    key: bytes | None = None
    before: Row | None = None
    after: Row | None = None
    old_key: bytes | None = None
    columns: tuple[str, ...] = ()
    types: tuple[int, ...] = ()
    origin: Written | None = None
    why: str = ""

    @property
    def where(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}"

    @property
    def row(self) -> Row:
        return self.after if self.after is not None else self.before or {}


Told = dict[Where, list[Seen]]         # in the order of the partition


def understand(topic: str, partition: int, record: Record) -> Seen:
    at = Seen(topic, partition, record.offset, "malformed", key=record.key)
    if record.value is None:
        return at._replace(kind="tombstone")
    try:
        return _understood(at, record, msgspec.json.decode(record.value, type=dict[str, Any]))
    except (KeyError, IndexError, TypeError, ValueError, msgspec.DecodeError, MillraceError) as error:
        return at._replace(why=f"{type(error).__name__}: {error}")


def key_texts(key: bytes | None) -> Texts | None:
    """Of a message's key, as PostgreSQL prints integers and texts."""
    if key is None:
        return None
    return tuple(None if value is None else str(value) for value in msgspec.json.decode(key).values())


def _understood(at: Seen, record: Record, value: dict[str, Any]) -> Seen:
    if value.get("op") == "m":
        if value["message"]["prefix"] != PREFIX:
            raise ValueError(f"a logical message of {value['message']['prefix']!r}")
        return at._replace(kind="watermark", place=Place(int(value["source"]["lsn"]), 0))
    source = value["source"]
    lsn, seq = msgspec.json.decode(source["sequence"])
    told = at._replace(table=(source["schema"], source["table"]), place=Place(int(lsn), int(seq)),
                       origin=written(record.headers))
    if told.origin is None:
        raise ValueError("no header tells where it comes from")
    if "tableChanges" in value:
        change = value["tableChanges"][0]
        columns = change["table"]["columns"]
        return told._replace(kind="schema", op=change["type"].lower(), columns=tuple(one["name"] for one in columns),
                             types=tuple(one["nativeType"] for one in columns))
    if value["op"] == TRUNCATE:
        return told._replace(kind="truncate", op=TRUNCATE)
    row = told._replace(kind="row", op=value["op"], before=value["before"], after=value["after"],
                        old_key=dict(record.headers).get(OLD_KEY))
    if row.op not in (INSERT, UPDATE, DELETE, READ) or (row.before if row.op == DELETE else row.after) is None:
        raise ValueError(f"op {row.op!r} without its image")
    return row._replace(columns=tuple(row.row))
