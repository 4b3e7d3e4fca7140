"""What a capture makes for the coordinator: readers, and the removal of what a source left in database and log.

In: a source as it was asked for, and the epoch it was given. Out: a reader to run, or a list of what could not be
removed. Promise: a removal can be repeated from any point; the source's office is emptied last, so that a source of the
same name starts from nothing [S1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from millrace.changefeed.coordinator import Workshop
from millrace.changefeed.copying.runner import Room, SparkRunner
from millrace.changefeed.reader_host import Reader
from millrace.changefeed.removal import Kept, is_held_up
from millrace.core.sources.registry import office, publication_name, slot_name, topic_prefix
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.log.client import LogClient
from millrace.model.sources import ReaderPlaced, SourceSpec
from millrace.ops.ports import Ports
from millrace.ops.secrets import Places
from millrace.pipeline.errands import Errands
from millrace.source.database.connect import Database
from millrace.source.database.setup import Setup
from millrace.source.reading.office import SourceOffice
from millrace.source.reading.reader import SourceReader
from millrace.store.contract import Candidate, Store

if TYPE_CHECKING:
    from millrace.changefeed.capture import CaptureSettings

log = structlog.get_logger(__name__)


def workshop(settings: CaptureSettings, incarnation: int, ports: Ports, store: Store, client: LogClient,
             me: Candidate, errands: Errands) -> Workshop:
    room = Room(errands.at_once)

    def reader(spec: SourceSpec, placed: ReaderPlaced) -> Reader:
        on_spark = settings.copy_on_spark and errands.has_spark
        return SourceReader(
            spec, epoch=placed.epoch, store=store, client=client, ports=ports, candidate=me,
            bootstrap=settings.bootstrap, spool_dir=settings.spool_dir, copy_parallel=settings.copy_processes,
            floor_move_s=settings.floor_move_s, places=settings.places,
            runner=SparkRunner(spec.name, errands, room, client, ports.clock) if on_spark else None)

    async def remove(spec: SourceSpec, placed: ReaderPlaced, force: bool) -> list[str]:
        held = SourceOffice(store, spec.name, placed.epoch)
        await held.open(me)                    # a reader that still runs somewhere writes no more
        left: list[str] = []
        try:
            if held.state.has_begun:           # else what stands there under its names is somebody else's
                left = await _remove_from_database(spec, placed.epoch, settings.places)
        except MillraceError as error:
            if not force:
                raise
            left = [f"slot {slot_name(spec)}, publication {publication_name(spec)} and triggers: {error}"]
        if is_held_up(left) and not force:
            return left
        for topic in await client.topics(topic_prefix(spec.name)):
            try:
                await client.delete_topic(topic)
            except UnknownTopicOrPartition:
                continue
        await empty_office(store, spec.name, placed.epoch)
        return left

    return Workshop(settings.id, incarnation, reader, remove)


async def _remove_from_database(spec: SourceSpec, epoch: int, places: Places) -> list[str]:
    database = Database(spec.url, source=spec.name, epoch=epoch, places=places)
    return [(str if left.is_ours else Kept)(f"{left.what}: {left.reason}; run: {' '.join(left.repair)}")
            for left in await Setup(database, spec).remove()]


async def empty_office(store: Store, name: str, epoch: int) -> None:
    """An empty snapshot stands for all records so far."""
    last = 0
    found = await store.load_snapshot(office(name))
    if found is not None:
        last = found[0]
    end = last
    while page := await store.read(office(name), end, 2_000):
        end = page[-1][0]
    if end > last:
        await store.save_snapshot(office(name), epoch, end, b"")
