"""Our own client of the log, in asyncio [L22].

In: the addresses of some brokers. Out: topics, writers with fences, fetches. Promise: it finds leaders by itself and
fails over; everything is tried again with jitter for `deadline_s` and then raises a typed error: Unreachable when
nobody answered, TimedOut with its last cause when nobody could do it. Errors that no repeat can mend come at once.
One instance serves all partitions of a process; it runs in one loop and has no threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

from millrace import limits
from millrace.errors import (
    LeaderNotAvailable,
    MillraceError,
    TimedOut,
    TopicExists,
    UnknownTopicOrPartition,
    Unreachable,
)
from millrace.log.client.answers import Backoff, again, error_of, given_up
from millrace.log.client.conn import Address, Connections, parse_address
from millrace.log.client.ends import Ends
from millrace.log.client.frames import Where
from millrace.log.client.metadata import Metadata, TopicInfo
from millrace.log.client.once import OnceWriter
from millrace.log.client.reading import Fetched, Fetcher
from millrace.log.client.sender import Sender
from millrace.log.client.together import Together
from millrace.log.client.writer import Writer
from millrace.ops.cluster_secret import Key
from millrace.ops.ports import Random
from millrace.ops.real import RealRandom
from millrace.wire.kafka.apis import OWN_CLIENT_ID
from millrace.wire.records import Record

T = TypeVar("T")
FETCH_BYTES = 8 * limits.MIB
FENCE_LANE = "fence"               # answered after a commit: nobody should wait behind it
ADMIN_LANE = "admin"               # answered after the controller has
OWN_WRITER_IDLE_S = 3600.0         # brokers forget a producer without a fence after a day of silence
UNKNOWN_S = 1.0                    # a topic created a moment ago may not be known everywhere yet


class LogClient:
    def __init__(
        self, bootstrap: Sequence[str], *, client_id: str = "millrace", deadline_s: float = limits.CLIENT_DEADLINE_S,
        random: Random | None = None, wall: Callable[[], float] = time.time, key: Key | None = None,
    ) -> None:
        """`key`: proves to brokers that this is one of the cluster's own processes; None: an ordinary client, without
        private calls and internal topics."""
        self.deadline_s, self.key = deadline_s, key
        self._random = random or RealRandom()
        self._wall = wall
        self._connections = Connections(OWN_CLIENT_ID + client_id, self._random, key)
        self._metadata = Metadata([parse_address(one) for one in bootstrap], self._connections, self._random)
        self._sender = Sender(self._metadata, self._connections)
        self._metadata.on_refreshed = self._sender.refreshed
        self._fetcher = Fetcher(self._metadata, self._connections)
        self._ends = Ends(self._metadata, self._connections)
        self._own: dict[Where, Writer] = {}
        self._coordinators: dict[str, Address] = {}
        self._searches = Together(self._find_coordinators, size_max=limits.CLIENT_GROUPS_ASKED_MAX,
                                  calls_max=limits.CLIENT_TOGETHER_MAX)
        self._creations = Together(self._create, size_max=limits.CLIENT_TOPICS_MADE_MAX,
                                   calls_max=limits.CLIENT_TOGETHER_MAX)
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False

    async def __aenter__(self) -> LogClient:
        self._metadata.start()
        self._tick()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Writers that are not flushed fail."""
        self._closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        await self._creations.close()
        await self._searches.close()
        await self._ends.close()
        await self._metadata.stop()
        await self._sender.close()
        await self._fetcher.close()
        await self._connections.close()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._sender.tick(now)
        self._fetcher.tick(now)
        self._connections.tick(now)
        self._ticker = loop.call_later(limits.CLIENT_TICK_S, self._tick)

    # -- topics ----------------------------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, *, partitions: int, configs: Mapping[str, str] | None = None, replication_factor: int = -1
    ) -> None:
        """Returns when every partition has a leader. TopicExists: it was there before. Topics that are created at the
        same time share a call."""
        topic = {
            "name": name, "num_partitions": partitions, "replication_factor": replication_factor,
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        unsure = False

        async def attempt() -> None:
            nonlocal unsure
            try:
                _raise_of(await self._creations.ask(topic))
            except TopicExists:
                if not unsure:                         # else it may be ours, from a call without an answer
                    raise
            except MillraceError:
                unsure = True
                raise

        await self._persist(f"create topic {name}", attempt)
        self._metadata.use(name)
        await self._persist(f"leaders of topic {name}", lambda: self._with_leaders(name), refresh=False)

    async def _create(self, topics: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One call. Of several with one name the first is created, and is there before the others."""
        first = {topic["name"]: topic for topic in reversed(topics)}
        fields = {"topics": list(first.values()), "timeout_ms": int(limits.CLIENT_CALL_S * 1000)}
        answer = await self._anybody("CreateTopics", 7, fields, answer_s=2 * limits.CLIENT_CALL_S)
        told = {one["name"]: one for one in answer["topics"]}
        there = {"error_code": TopicExists.kafka_code, "error_message": "created at the same time"}
        return [
            there if topic is not first[topic["name"]] and not told[topic["name"]]["error_code"]
            else told[topic["name"]] for topic in topics
        ]

    async def delete_topic(self, name: str) -> None:
        fields = {"topics": [{"name": name}], "timeout_ms": int(limits.CLIENT_CALL_S * 1000)}
        unsure = False

        async def attempt() -> None:
            nonlocal unsure
            try:
                answer = await self._anybody("DeleteTopics", 6, fields, answer_s=2 * limits.CLIENT_CALL_S)
                _raise_of(answer["topics"][0])
            except UnknownTopicOrPartition as error:
                if not unsure:
                    raise _Final(error) from error
            except MillraceError:
                unsure = True
                raise

        await self._persist(f"delete topic {name}", attempt)
        self._metadata.forget(name)
        for where in [where for where in self._own if where[0] == name]:
            self._own.pop(where).close()

    async def topic(self, name: str) -> TopicInfo:
        """As the brokers say now. UnknownTopicOrPartition: after a second of asking, nobody knows it."""
        async def attempt() -> TopicInfo:
            await self._metadata.look(name)
            found = self._metadata.known(name)
            if found is None:
                raise again(self._metadata.why_unknown(name))
            return found

        return await self._persist(f"topic {name}", attempt, unknown_s=UNKNOWN_S, refresh=False)

    async def meet(self, names: Iterable[str]) -> None:
        """Asks about those that it does not know yet, together: hundreds of works that each ask for themselves, some at
        a time, cost a question for every few."""
        unknown = [name for name in dict.fromkeys(names) if self._metadata.known(name) is None]
        for at in range(0, len(unknown), limits.CLIENT_TOPICS_ASKED_MAX):
            await self._metadata.ask(unknown[at : at + limits.CLIENT_TOPICS_ASKED_MAX])

    async def there(self, names: Iterable[str]) -> set[str]:
        """Those that are there, as one broker says now."""
        asked = list(dict.fromkeys(names))

        async def attempt() -> list[str]:
            return await self._metadata.ask(asked) if asked else []

        return set(await self._persist("topics by name", attempt, refresh=False))

    async def topics(self, prefix: str = "") -> list[str]:
        """Names, internal ones among them."""
        async def attempt() -> list[str]:
            return await self._metadata.ask(None)

        return sorted(name for name in await self._persist("topics", attempt) if name.startswith(prefix))

    async def topic_ids(self) -> dict[UUID, str]:
        """Every topic by its id, as one broker says now."""
        names = await self.topics()
        return {info.id: name for name in names if (info := self._metadata.known(name)) is not None}

    def known_id(self, name: str) -> UUID | None:
        """The topic's id as metadata that is kept fresh has it; None: nobody has asked for it yet."""
        info = self._metadata.known(name)
        return info.id if info is not None else None

    async def _with_leaders(self, name: str) -> None:
        await self._metadata.look(name)
        found = self._metadata.known(name)
        if found is None or not found.has_leaders:
            raise LeaderNotAvailable(f"{name}: not every partition has a leader")

    # -- writing ---------------------------------------------------------------------------------------------------

    async def new_writer_id(self) -> int:
        """An id nobody had before."""
        async def attempt() -> int:
            answer = await self._anybody("InitProducerId", 4, {"transactional_id": None})
            _raise_of(answer)
            found: int = answer["producer_id"]
            return found

        return await self._persist("new writer id", attempt)

    async def fence(self, topic: str, partition: int, *, writer_id: int, epoch: int) -> int:
        """The offset of the fence: from here on lower epochs of this writer are refused [L28]."""
        fields = {
            "topic": topic, "partition": partition, "writer_id": writer_id, "writer_epoch": epoch,
            "timeout_ms": int(limits.CLIENT_PRODUCE_S * 1000),
        }

        async def attempt() -> int:
            address = await self._metadata.find_leader(topic, partition)
            conn = await self._connections.get(address, FENCE_LANE)
            answer = await conn.call(
                "FenceWriter", 0, fields, answer_s=limits.CLIENT_PRODUCE_S + limits.CLIENT_CALL_S
            )
            _raise_of(answer)
            offset: int = answer["offset"]
            return offset

        return await self._persist(f"fence {topic}/{partition}", attempt)

    def writer(self, topic: str, partition: int, *, writer_id: int, epoch: int, sequence: int = 0) -> Writer:
        """Writes with this identity; `fence` first. Close it when it is no longer needed."""
        if self._closed:
            raise Unreachable("the client is closed")
        writer = Writer(
            self._sender, (topic, partition), writer_id=writer_id, epoch=epoch, sequence=sequence,
            deadline_s=self.deadline_s, random=self._random, wall=self._wall,
        )
        self._sender.add(writer)
        return writer

    def once(self, topic: str, partition: int) -> OnceWriter:
        """Sends sealed batches, each once: for those who number and repeat themselves. Close it afterwards."""
        if self._closed:
            raise Unreachable("the client is closed")
        writer = OnceWriter(self._sender, (topic, partition))
        self._sender.add(writer)
        return writer

    async def append(self, topic: str, partition: int, records: Sequence[Record]) -> int:
        """Once, under an id of this client's own. The offset of the first record."""
        where = (topic, partition)
        writer = self._own.get(where)
        if writer is None or not _is_usable(writer):
            writer_id = await self.new_writer_id()     # a fresh id: nothing is known of what the former left behind
            writer = self._own.get(where)
            if writer is None or not _is_usable(writer):
                if writer is not None:
                    writer.close()
                writer = self._own[where] = self.writer(topic, partition, writer_id=writer_id, epoch=0)
        return await writer.append(records)

    # -- reading ---------------------------------------------------------------------------------------------------

    async def ends(self, topic: str, partition: int) -> tuple[int, int]:
        """(log start, high watermark)"""
        return await self._persist(f"ends of {topic}/{partition}", lambda: self._ends.of((topic, partition)))

    async def fetch(
        self, wanted: Mapping[Where, int], *, wait_s: float = 0.5, bytes_max: int = FETCH_BYTES,
        each_bytes_max: int | None = None, writers: frozenset[int] | None = None,
    ) -> dict[Where, Fetched]:
        """Waits up to `wait_s` for the first records. Partitions of which nothing was heard are left out. `writers`:
        only what these have written.

        `bytes_max` is per broker, and one partition may have all of it where `each_bytes_max` does not say how much; a
        single larger batch still comes. OffsetOutOfRange: below the log start or above the end."""
        async def attempt() -> dict[Where, Fetched]:
            outcome = await self._fetcher.fetch(
                wanted, wait_s=wait_s, bytes_max=bytes_max, each_bytes_max=each_bytes_max, writers=writers)
            found = {where: one for where, one in outcome.items() if isinstance(one, Fetched)}
            failures = [one for one in outcome.values() if isinstance(one, MillraceError)]
            for failure in failures:
                if not failure.retriable:
                    raise failure
            if failures:
                self._metadata.doubt()
            if failures and not any(one.records for one in found.values()):
                raise failures[0]                      # those that answered have nothing: ask all again
            return found

        if not wanted:
            return {}
        return await self._persist("fetch", attempt, more_s=wait_s)

    async def read(
        self, topic: str, partition: int, start: int, end: int, *, bytes_max: int = FETCH_BYTES
    ) -> AsyncIterator[list[Record]]:
        """All records from `start` up to, not including, `end`; waits for those that are not there yet, up to
        `deadline_s` without any. `bytes_max`: of one page; what stands behind `end` is fetched with it."""
        where = (topic, partition)
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while start < end:
            found = (await self.fetch({where: start}, wait_s=min(1.0, self.deadline_s), bytes_max=bytes_max)).get(where)
            if found is None or found.next_offset == start:
                if loop.time() - heard_at > self.deadline_s:
                    raise TimedOut(f"{topic}/{partition}: nothing at {start}, records up to {end} were asked for")
                continue
            heard_at = loop.time()
            start = found.next_offset
            records = found.records if start <= end else [r for r in found.records if r.offset < end]
            if records:
                yield records

    # -- groups ----------------------------------------------------------------------------------------------------

    async def ask_group(self, group: str, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A call of version 0 at the coordinator of a group [L21]."""
        async def attempt() -> dict[str, Any]:
            home = self._coordinators.get(group) or await self._searches.ask(group)
            slow = asyncio.get_running_loop().call_later(limits.CLIENT_SLOW_S, self._doubt_coordinator, group, home)
            try:
                conn = await self._connections.get(home, FENCE_LANE)
                answer = await conn.call(name, 0, fields, answer_s=limits.GROUP_APPEND_S + limits.CLIENT_CALL_S)
                _raise_of(answer)
            except BaseException:
                self._doubt_coordinator(group, home)
                raise
            finally:
                slow.cancel()
            return answer

        return await self._persist(f"{name} of group {group}", attempt)

    def _doubt_coordinator(self, group: str, home: Address) -> None:
        """Kept only while it answers well: another one may have been elected since."""
        if self._coordinators.get(group) == home:
            del self._coordinators[group]

    async def _find_coordinators(self, groups: list[str]) -> list[Address | MillraceError]:
        answer = await self._anybody(
            "FindCoordinator", 4, {"coordinator_keys": list(dict.fromkeys(groups))},
            answer_s=limits.GROUP_CREATE_S + limits.CLIENT_CALL_S)
        told = {one["key"]: one for one in answer["coordinators"]}
        return [self._coordinator(group, told[group]) for group in groups]

    def _coordinator(self, group: str, told: Mapping[str, Any]) -> Address | MillraceError:
        if told["error_code"]:
            return error_of(told["error_code"], told["error_message"])
        self._coordinators[group] = Address(told["host"], told["port"])
        return self._coordinators[group]

    # -- the controller --------------------------------------------------------------------------------------------

    async def ask_anybody(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A call of version 0 that every broker answers, after it has asked the controller."""
        async def attempt() -> dict[str, Any]:
            answer = await self._anybody(name, 0, fields, answer_s=2 * limits.CLIENT_CALL_S)
            _raise_of(answer)
            return answer

        return await self._persist(name, attempt)

    # -- trying ----------------------------------------------------------------------------------------------------

    async def _anybody(
        self, name: str, version: int, fields: Mapping[str, Any], *, answer_s: float = limits.CLIENT_CALL_S
    ) -> dict[str, Any]:
        """Of the first broker that can be reached; whoever got the request is not asked twice here."""
        last: MillraceError = Unreachable("no broker is known")
        for address in self._metadata.candidates():
            try:
                conn = await self._connections.get(address, ADMIN_LANE)
            except Unreachable as error:
                last = error
                continue
            return await conn.call(name, version, fields, answer_s=answer_s)
        raise last

    async def _persist(
        self, what: str, attempt: Callable[[], Awaitable[T]], *, more_s: float = 0.0, unknown_s: float | None = None,
        refresh: bool = True,
    ) -> T:
        """Until it works, cannot be mended, or the deadline has come. `refresh`: metadata of all that is in use, before
        another try; needless where the attempt asks for what it wants to know."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline_s = self.deadline_s + more_s
        backoff = Backoff(self._random)
        last: MillraceError | None = None
        while True:
            try:
                async with asyncio.timeout_at(began + deadline_s):
                    if last is not None and refresh:
                        await self._metadata.soon()
                    return await attempt()
            except TimeoutError:
                raise given_up(last or TimedOut("no answer"), what=what, after_s=deadline_s) from last
            except _Final as final:
                raise final.error from None
            except MillraceError as error:
                if not error.retriable:
                    raise
                last = error
            if unknown_s is not None and isinstance(last, UnknownTopicOrPartition):
                deadline_s = min(deadline_s, unknown_s)
            pause_s = backoff.next_s()
            after_s = loop.time() - began
            if after_s + pause_s >= deadline_s:
                raise given_up(last, what=what, after_s=after_s) from last
            await asyncio.sleep(pause_s)


def _is_usable(writer: Writer) -> bool:
    return writer.error is None and writer.idle_s < OWN_WRITER_IDLE_S


class _Final(Exception):
    """An error that is not tried again although its kind would be."""

    def __init__(self, error: MillraceError) -> None:
        self.error = error


def _raise_of(answer: Mapping[str, Any]) -> None:
    if answer["error_code"]:
        raise error_of(answer["error_code"], answer.get("error_message"))
