"""What runs on Spark's Python workers for a copy: a pack of attempts at chunks, and the trial before it.

In: tasks by value, with their secrets resolved: what the capture's environment and files hold, a worker elsewhere does
not have. Out: their results, by value; words about them meanwhile, by way of the log. Promise: an attempt is the one
that processes run (source.copying.attempt), so what it promises holds here; whatever one chunk does is its own result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import psycopg

from millrace.changefeed.copying.words import Voice
from millrace.core.sources.packing import gives_back_at
from millrace.core.sources.registry import words_topic
from millrace.errors import MillraceError
from millrace.log.client import PlainClient
from millrace.ops.cluster_secret import Key
from millrace.ops.secrets import NOWHERE, Places, Secret
from millrace.source.copying.attempt import (
    FAILED,
    ChunkProgress,
    ChunkResult,
    ChunkTask,
    Lines,
    given_back,
    run_chunk,
)
from millrace.source.database.connect import Database

# Of a server and a database: no two have the same, nor has one that was restarted.
IDENTITY = "SELECT pg_catalog.pg_postmaster_start_time()::text || ' ' || pg_catalog.current_database()"


class Pack(msgspec.Struct, frozen=True):
    """Of one source. `name`: in its words, used once."""

    name: str
    tasks: tuple[ChunkTask, ...]


_packs: msgspec.msgpack.Decoder[Pack] = msgspec.msgpack.Decoder(Pack)
_results: msgspec.msgpack.Decoder[list[ChunkResult]] = msgspec.msgpack.Decoder(list[ChunkResult])


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Whether workers of Spark reach what an attempt needs. `identity`: of the database as the capture finds it."""

    source: str
    url: str
    bootstrap: tuple[str, ...]
    identity: str
    places: Places = NOWHERE
    log_key: Key | None = None


_trials: msgspec.msgpack.Decoder[Trial] = msgspec.msgpack.Decoder(Trial)


def encode_pack(name: str, tasks: Sequence[ChunkTask]) -> bytes:
    """Holds the password: for a worker only."""
    url = Secret.expand(tasks[0].url, places=tasks[0].places).reveal()
    return msgspec.msgpack.encode(Pack(name, tuple(msgspec.structs.replace(task, url=url) for task in tasks)))


def encode_trial(trial: Trial) -> bytes:
    """Holds the password: for a worker only."""
    url = Secret.expand(trial.url, places=trial.places).reveal()
    return msgspec.msgpack.encode(msgspec.structs.replace(trial, url=url))


def decode_results(answer: bytes) -> list[ChunkResult]:
    return _results.decode(answer)


# -- errands -----------------------------------------------------------------------------------------------------------
def pack(payload: bytes) -> bytes:
    wanted = _packs.decode(payload)
    first = wanted.tasks[0]
    with Voice(first.bootstrap, words_topic(first.source), wanted.name, first.log_key) as voice:
        return msgspec.msgpack.encode(_run_all(wanted.tasks, voice))


def _run_all(tasks: Sequence[ChunkTask], voice: Voice) -> list[ChunkResult]:
    results: list[ChunkResult] = []
    give_back_at = gives_back_at(time.monotonic())
    with Lines() as lines:
        for number, task in enumerate(tasks):
            if number and time.monotonic() > give_back_at:
                result = given_back()
            else:
                voice.progress(number, ChunkProgress(0, 0))
                result = _run(task, partial(voice.progress, number), lines)
            voice.result(number, result)
            results.append(result)
    return results


def _run(task: ChunkTask, report: Callable[[ChunkProgress], None], lines: Lines) -> ChunkResult:
    try:
        return run_chunk(task, report=report, lines=lines)
    except Exception as error:           # a fault of ours, at this table's rows: the other tables go on
        return ChunkResult(error=f"{type(error).__name__}: {error}", code=FAILED)


def trial(payload: bytes) -> bytes:
    """Empty: well. Else what is wrong."""
    wanted = _trials.decode(payload)
    try:
        return _tried(wanted).encode()
    except (MillraceError, psycopg.Error, OSError) as error:
        return " ".join(str(error).split()).encode() or b"failed"


def _tried(wanted: Trial) -> str:
    database = Database(wanted.url, source=wanted.source, places=wanted.places)
    with database.connect_plain() as connection, database.explained("trial"):
        [(identity,)] = connection.execute(IDENTITY).fetchall()
    if identity != wanted.identity:
        return f"under {database.address} they find another server than the capture"
    with PlainClient(wanted.bootstrap, client_id="millrace-copy-trial", key=wanted.log_key) as client:
        client.ends(words_topic(wanted.source), 0)
    return ""
