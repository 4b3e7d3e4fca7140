"""All that a source's `progress` holds, read once for one changefeed: its tables, copies, marks, where it has written.

In: a spec. Out: the source's story as that spec tells it, and the topics that a position's writer may have written to.
UnknownSource: there is no such `progress`.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.changefeed.homes.progress import ProgressReader
from millrace.changefeed.homes.targets import Targets
from millrace.core.delivery.copies import Copies
from millrace.core.delivery.source_marks import Marks
from millrace.core.feeds.ddl_home import named
from millrace.core.feeds.rewinding import Reach
from millrace.core.feeds.source_story import SourceStory, Told
from millrace.core.sources.registry import table_topic
from millrace.log.client import LogClient
from millrace.log.client.metadata import TopicInfo
from millrace.model.changefeeds import ChangefeedSpec
from millrace.model.positions import PositionKey, StoredPosition
from millrace.model.quarantine import quarantine_topic


class Retold:
    def __init__(self, client: LogClient, spec: ChangefeedSpec) -> None:
        self.client, self.spec = client, spec
        self.progress, self.targets = ProgressReader(client, spec.source), Targets(client, spec)
        self.story, self.copies, self.marks, self.reach = SourceStory(spec), Copies(), Marks(), Reach()
        self.told: list[Told] = []

    async def read(self) -> None:
        await self.progress.open()
        for page in await self.progress.there():
            for offset, record in page:
                self.copies.replay(offset, record)
                self.marks.replay(offset, record)
                self.reach.replay(record)
                if (told := self.story.replay(offset, record)) is not None:
                    self.told.append(told)
                    self.targets.note(told.table)

    async def topics(self, stored: Mapping[PositionKey, StoredPosition]) -> dict[PositionKey, list[TopicInfo]]:
        """Where each position's writer may have written, as far as the source's history names it."""
        if not stored:
            return {}                                    # a topic that is not there is asked for a second long
        spec, targets = self.spec, self.targets
        quarantine = quarantine_topic(spec.id)
        found = {info.name: info for info in await targets.found(targets.names() | {quarantine})}
        sources = {table_topic(spec.source, oid): oid for oid in targets.oids}
        sources |= {book.topic: oid for oid in targets.oids for book in self.copies.of(oid, spec.id)}
        oids = {info.id: sources[info.name] for info in await targets.found(sources)}
        topics: dict[PositionKey, list[TopicInfo]] = {}
        for key, position in stored.items():
            if key.topic_id == self.progress.id:         # the ddl position: changes are written where it names them
                ids = {target.topic_id for target in named(position)}
                topics[key] = [info for info in found.values() if info.id in ids]
            elif key.topic_id in oids:
                names = targets.names(oids[key.topic_id]) | {quarantine}
                topics[key] = [found[name] for name in names if name in found]
        return topics
