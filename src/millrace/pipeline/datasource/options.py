"""What a user may say to `format("millrace")`, checked at once and by name.

In: Spark's options (strings, names in any case). Out: `Options`. Names are those of Spark's Kafka connector where they
mean the same. Errors: InvalidOption, whose message names the option and what it may be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import msgspec

from millrace import limits
from millrace.errors import InvalidOption
from millrace.ops.cluster_secret import Key

T = TypeVar("T")

EARLIEST, LATEST = "earliest", "latest"
EARLIEST_OFFSET, LATEST_OFFSET = -2, -1                  # in JSON, as Kafka's own clients write them


class OnTruncate(StrEnum):
    FAIL = "fail"
    ROW = "row"
    IGNORE = "ignore"


Offsets = str | dict[str, Any]                           # EARLIEST, LATEST, or what JSON said


class Options(NamedTuple):
    bootstrap: tuple[str, ...]
    source: str
    table: str
    starting: Offsets
    ending: Offsets
    schema_version: str
    offsets_max: int | None
    records_per_task: int
    tasks_min: int
    fail_on_data_loss: bool
    include_copy: bool
    on_truncate: OnTruncate
    prefix: str
    idle_wait_s: float
    secret_file: str = ""
    log_key: Key | None = None                           # found by `secret.with_key`; its repr shows nothing


class Option(NamedTuple):
    """`default` None: must be given. `only`: "batch" or "streaming" where it has no meaning in the other."""

    default: str | None
    meaning: str
    only: str = ""


OPTIONS: dict[str, Option] = {
    "kafka.bootstrap.servers": Option(None, "some brokers, `host:port,…`; `bootstrap.servers` is the same"),
    "source": Option(None, "the source's name"),
    "table": Option(None, "`schema.table`; a bare name is one of schema public"),
    "secretFile": Option(
        "", "file with the cluster's secret, read by Spark's driver; the default is `MILLRACE_SECRET_FILE` of its "
        "environment (set in the Spark of `millrace up`), else `.millrace/secret` in its working directory"),
    "startingOffsets": Option(
        "", "`earliest`, `latest`, or JSON `{\"0\": 17, \"1\": -2}`: the next offset of each partition, -2 earliest, "
        "-1 latest; the default is `earliest`. A streaming query that has a checkpoint goes on there"),
    "endingOffsets": Option(LATEST, "as `startingOffsets`, but not `earliest`; excluded", only="batch"),
    "schemaVersion": Option(LATEST, "the schema version (its id) whose columns the rows have"),
    "maxOffsetsPerTrigger": Option(
        "", "at most so many log records (each up to 1 MiB of rows) in one micro-batch, but always up to the next "
        "complete position; the default is no limit", only="streaming"),
    "maxRecordsPerPartition": Option(
        str(limits.READ_RECORDS_PER_TASK), "log records that one Spark partition reads; longer ranges are cut"),
    "minPartitions": Option("1", "wanted number of Spark partitions: ranges are cut until there are as many"),
    "failOnDataLoss": Option(
        "true", "whether to fail when changes are gone (the log begins above the position, the source's history broke) "
        "or to go on behind the gap"),
    "includeCopy": Option("true", "whether rows of the table's copies are given, as inserts at their low mark"),
    "onTruncate": Option(
        OnTruncate.FAIL, "a TRUNCATE is an error (`fail`), a row of its own (`row`: `_change_type` is truncate, all "
        "columns null), or nothing (`ignore`)"),
    "metadataPrefix": Option("_", "what the names of the metadata columns begin with, for tables that use such names"),
    "idleWaitMs": Option(
        str(int(limits.READ_IDLE_WAIT_S * 1000)), "how long a query without news waits at the log until Spark asks "
        "again", only="streaming"),
}
_NAMES = {name.lower(): name for name in OPTIONS} | {"bootstrap.servers": "kafka.bootstrap.servers"}


def parse_options(given: Mapping[str, str], *, streaming: bool | None = None) -> Options:
    """`streaming` None: not known yet, as when only the schema is asked for."""
    values = _named(given, streaming)

    def read(name: str, parse: Callable[[str, str], T]) -> T:
        return parse(name, values[name])

    return Options(
        bootstrap=read("kafka.bootstrap.servers", _servers),
        source=values["source"],
        table=values["table"],
        starting=read("startingOffsets", _offsets) or EARLIEST,
        ending=read("endingOffsets", _ending),
        schema_version=values["schemaVersion"].lower(),
        offsets_max=read("maxOffsetsPerTrigger", _positive) if values["maxOffsetsPerTrigger"] else None,
        records_per_task=read("maxRecordsPerPartition", _positive),
        tasks_min=read("minPartitions", _positive),
        fail_on_data_loss=read("failOnDataLoss", _flag),
        include_copy=read("includeCopy", _flag),
        on_truncate=read("onTruncate", _on_truncate),
        prefix=read("metadataPrefix", _some),
        idle_wait_s=read("idleWaitMs", _positive) / 1000,
        secret_file=values["secretFile"],
    )


def _named(given: Mapping[str, str], streaming: bool | None) -> dict[str, str]:
    values: dict[str, str] = {}
    for key, value in given.items():
        name = _NAMES.get(key.lower())
        if name is None:
            raise InvalidOption(f"unknown option {key}; known are {', '.join(OPTIONS)}")
        if name in values and values[name] != value:
            raise InvalidOption(f"option {name} is given twice")
        if streaming is not None and OPTIONS[name].only == ("batch" if streaming else "streaming"):
            kinds = ("a streaming query", "batches") if streaming else ("a batch", "streaming queries")
            raise InvalidOption(f"option {name} has no meaning for {kinds[0]}, only for {kinds[1]}")
        values[name] = value
    for name, option in OPTIONS.items():
        if name in values and not values[name].strip():
            raise InvalidOption(f"option {name} is empty")
        if name not in values and option.default is None:
            raise InvalidOption(f"option {name} is missing: {option.meaning}")
        values.setdefault(name, option.default or "")
    return values


def _servers(name: str, text: str) -> tuple[str, ...]:
    found = tuple(one.strip() for one in text.split(",") if one.strip())
    for one in found:
        host, _, port = one.rpartition(":")
        if not host or not port.isdigit():
            raise InvalidOption(f"option {name}: {one!r} is not host:port")
    return found


def _offsets(name: str, text: str) -> Offsets:
    if text.lower() in ("", EARLIEST, LATEST):
        return text.lower()
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidOption(f"option {name}: earliest, latest or a JSON object, not {text[:80]!r} ({error})") from error
    offsets = found.get("offsets", found)                # a whole position, as a query's progress shows it, will do
    if not isinstance(offsets, dict) or not all(
        key.isdigit() and isinstance(value, int) and value >= EARLIEST_OFFSET for key, value in offsets.items()
    ):
        raise InvalidOption(f"option {name}: {{partition: offset}} with numbers, not {json.dumps(found)[:80]}")
    return found


def _ending(name: str, text: str) -> Offsets:
    found = _offsets(name, text)
    offsets = found.get("offsets", found) if isinstance(found, dict) else {}
    if found == EARLIEST or EARLIEST_OFFSET in offsets.values():
        raise InvalidOption(f"option {name} cannot be earliest: it is where the batch ends")
    return found


def _positive(name: str, text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise InvalidOption(f"option {name}: a number of 1 or more, not {text!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidOption(f"option {name}: true or false, not {text!r}")
    return text.lower() == "true"


def _on_truncate(name: str, text: str) -> OnTruncate:
    try:
        return OnTruncate(text.lower())
    except ValueError:
        raise InvalidOption(f"option {name}: one of {', '.join(OnTruncate)}, not {text!r}") from None


def _some(_name: str, text: str) -> str:
    return text
