"""Who leads what, as the brokers say: asked every 30 s, and at once when somebody has reason to doubt it [L22].

In: names of topics in use. Out: `TopicInfo`, addresses of leaders. Promise: what is known never goes back to a lower
leader epoch; all doubts that come while a question is under way share the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog

from millrace import limits
from millrace.errors import LeaderNotAvailable, MillraceError, TopicNotAuthorized, UnknownTopicOrPartition, Unreachable
from millrace.log.client.answers import Backoff, again, error_of
from millrace.log.client.conn import Address, Connections
from millrace.log.client.together import Together
from millrace.ops.ports import Random

log = structlog.get_logger(__name__)

VERSION = 12
NO_LEADER = -1
LANE = "call"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    index: int
    leader: int                    # -1: none at present
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    id: UUID
    partitions: tuple[PartitionInfo, ...]

    @property
    def has_leaders(self) -> bool:
        return bool(self.partitions) and all(p.leader != NO_LEADER for p in self.partitions)


class Metadata:
    def __init__(self, bootstrap: Sequence[Address], connections: Connections, random: Random) -> None:
        self._bootstrap = tuple(bootstrap)
        self._connections, self._random = connections, random
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._refused: dict[str, MillraceError] = {}
        self._used: dict[str, None] = {}
        self._doubt = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._looks = Together(
            self._look, size_max=limits.CLIENT_TOPICS_ASKED_MAX, calls_max=limits.CLIENT_TOGETHER_MAX)
        self._task: asyncio.Task[None] | None = None
        self.on_refreshed: Callable[[MillraceError | None], None] = lambda error: None
        self.refreshes = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for waiter in self._waiting:
            waiter.cancel()
        await self._looks.close()

    # -- what is known ---------------------------------------------------------------------------------------------

    def use(self, name: str) -> None:
        """Keep it fresh from now on."""
        self._used[name] = None

    def forget(self, name: str) -> None:
        self._used.pop(name, None)
        self._topics.pop(name, None)

    def known(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def why_unknown(self, name: str) -> MillraceError:
        return self._refused.get(name) or UnknownTopicOrPartition(f"there is no topic {name}")

    def leader(self, name: str, partition: int) -> Address | None:
        """None: not known, or there is none."""
        topic = self._topics.get(name)
        if topic is None or partition >= len(topic.partitions):
            return None
        return self._brokers.get(topic.partitions[partition].leader)

    async def find_leader(self, name: str, partition: int) -> Address:
        """As `leader`, asking first when the topic is new; raises what is missing."""
        self.use(name)                              # known from a look at it is not yet kept fresh
        if name not in self._topics:
            await self.look(name)
        topic = self._topics.get(name)
        if topic is None:
            raise again(self.why_unknown(name))
        if not 0 <= partition < len(topic.partitions):
            raise UnknownTopicOrPartition(f"there is no {name}/{partition}")
        found = self.leader(name, partition)
        if found is None:
            raise LeaderNotAvailable(f"{name}/{partition} has no leader at present")
        return found

    def candidates(self) -> list[Address]:
        """Every broker that may be asked, in an order of chance."""
        found = list(dict.fromkeys([*self._brokers.values(), *self._bootstrap]))
        return sorted(found, key=lambda _: self._random.uniform(0, 1))

    # -- asking ----------------------------------------------------------------------------------------------------

    def soon(self) -> asyncio.Future[None]:
        """Ask now. Done when a question that began after this call was answered; fails when nobody answered it."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._doubt.set()
        return waiter

    def doubt(self) -> None:
        self._doubt.set()

    async def _run(self) -> None:
        backoff = Backoff(self._random)
        while True:
            try:
                async with asyncio.timeout(limits.CLIENT_REFRESH_S):
                    await self._doubt.wait()
            except TimeoutError:
                backoff.reset()
            self._doubt.clear()
            waiting, self._waiting = self._waiting, []
            error = await self._refresh()
            _resolve(waiting, error)
            try:
                self.on_refreshed(error)
            except Exception:                       # ours; without this task nobody would find a leader again
                log.exception("a writer could not take new metadata")
            if error is None and not self._doubt.is_set():
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next_s())

    async def _refresh(self) -> MillraceError | None:
        try:
            await self.ask(list(self._used))
        except MillraceError as error:
            return error
        return None

    async def look(self, name: str) -> None:
        """One topic, as the brokers say now, and not all that are in use: there may be thousands. Those who look at the
        same time share a question."""
        await self._looks.ask(name)

    async def _look(self, names: list[str]) -> list[None]:
        await self.ask(dict.fromkeys(names))
        return [None] * len(names)

    async def ask(self, names: Iterable[str] | None) -> list[str]:
        """One question to the first broker that answers; None: all topics. The names it told."""
        last: MillraceError = Unreachable("no broker is known")
        wanted = None if names is None else [{"name": name} for name in names]
        for address in self.candidates():
            try:
                conn = await self._connections.get(address, LANE)
                answer = await conn.call(
                    "Metadata", VERSION, {"topics": wanted, "allow_auto_topic_creation": False},
                    answer_s=limits.CLIENT_SLOW_S,
                )
            except MillraceError as error:
                last = error
                continue
            self.refreshes += 1
            return self._take(answer)
        raise last

    def _take(self, answer: dict[str, Any]) -> list[str]:
        if answer["brokers"]:
            self._brokers = {b["node_id"]: Address(b["host"], b["port"]) for b in answer["brokers"]}
        told: list[str] = []
        for topic in answer["topics"]:
            name = topic["name"]
            if topic["error_code"]:
                self._topics.pop(name, None)
                self._refused[name] = _refusal(topic["error_code"], name)
                continue
            self._refused.pop(name, None)
            self._topics[name] = self._newest(_topic_info(topic))
            told.append(name)
        return told

    def _newest(self, told: TopicInfo) -> TopicInfo:
        """A broker that lags must not take us back."""
        known = self._topics.get(told.name)
        if known is None or known.id != told.id:
            return told
        before = {partition.index: partition for partition in known.partitions}
        partitions = tuple(
            before[p.index] if p.index in before and before[p.index].leader_epoch > p.leader_epoch else p
            for p in told.partitions
        )
        return TopicInfo(told.name, told.id, partitions)


def _refusal(code: int, name: str) -> MillraceError:
    if code == TopicNotAuthorized.kafka_code:
        return TopicNotAuthorized(f"topic {name} is for processes that prove the cluster's secret")
    return error_of(code, f"there is no topic {name}")


def _topic_info(topic: dict[str, Any]) -> TopicInfo:
    partitions = sorted(
        (
            PartitionInfo(
                p["partition"], p["leader_id"], p["leader_epoch"], tuple(p["replica_nodes"]), tuple(p["isr_nodes"])
            )
            for p in topic["partitions"]
        ),
        key=lambda p: p.index,
    )
    return TopicInfo(topic["name"], topic["topic_id"], tuple(partitions))


def _resolve(waiting: list[asyncio.Future[None]], error: MillraceError | None) -> None:
    for waiter in waiting:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
            waiter.exception()
