"""What runs on Spark's Python workers for a copy: an attempt at a chunk, and the trial before it.

In: a task by value, with its secrets resolved: what the capture's environment and files hold, a worker elsewhere does
not have. Out: its result, by value; words about it meanwhile, by way of the log. Promise: an attempt is the one that
processes run (source.copying.attempt), so what it promises holds here.
"""

from __future__ import annotations

import msgspec
import psycopg

from millrace.changefeed.copying.words import Voice
from millrace.core.sources.copies import Attempt
from millrace.core.sources.registry import words_topic
from millrace.errors import MillraceError
from millrace.log.client import PlainClient
from millrace.ops.secrets import Secret
from millrace.source.copying.attempt import ChunkResult, ChunkTask, run_chunk
from millrace.source.database.connect import Database

# Of a server and a database: no two have the same, nor has one that was restarted.
IDENTITY = "SELECT pg_catalog.pg_postmaster_start_time()::text || ' ' || pg_catalog.current_database()"

_tasks: msgspec.msgpack.Decoder[ChunkTask] = msgspec.msgpack.Decoder(ChunkTask)
_results: msgspec.msgpack.Decoder[ChunkResult] = msgspec.msgpack.Decoder(ChunkResult)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Whether workers of Spark reach what an attempt needs. `identity`: of the database as the capture finds it."""

    source: str
    url: str
    bootstrap: tuple[str, ...]
    identity: str


_trials: msgspec.msgpack.Decoder[Trial] = msgspec.msgpack.Decoder(Trial)


def encode_task(task: ChunkTask) -> bytes:
    """Holds the password: for a worker only."""
    return msgspec.msgpack.encode(msgspec.structs.replace(task, url=Secret.expand(task.url).reveal()))


def encode_trial(trial: Trial) -> bytes:
    """Holds the password: for a worker only."""
    return msgspec.msgpack.encode(msgspec.structs.replace(trial, url=Secret.expand(trial.url).reveal()))


def decode_result(answer: bytes) -> ChunkResult:
    return _results.decode(answer)


# -- errands -----------------------------------------------------------------------------------------------------------
def chunk(payload: bytes) -> bytes:
    task = _tasks.decode(payload)
    attempt = Attempt(task.copy, task.chunk, task.attempt)
    with Voice(task.bootstrap, words_topic(task.source), attempt) as voice:
        return msgspec.msgpack.encode(run_chunk(task, report=voice.progress))


def trial(payload: bytes) -> bytes:
    """Empty: well. Else what is wrong."""
    wanted = _trials.decode(payload)
    try:
        return _tried(wanted).encode()
    except (MillraceError, psycopg.Error, OSError) as error:
        return " ".join(str(error).split()).encode() or b"failed"


def _tried(wanted: Trial) -> str:
    database = Database(wanted.url, source=wanted.source)
    with database.connect_plain() as connection, database.explained("trial"):
        [(identity,)] = connection.execute(IDENTITY).fetchall()
    if identity != wanted.identity:
        return f"under {database.address} they find another server than the capture"
    with PlainClient(wanted.bootstrap, client_id="millrace-copy-trial") as client:
        client.ends(words_topic(wanted.source), 0)
    return ""
