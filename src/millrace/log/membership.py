"""A broker as a member of the cluster: registration, heartbeats, lease, metadata long poll, controlled stop.

    open directory ─▶ register ─▶ catch up with metadata ─▶ listen ─▶ heartbeat(ready) ─▶ unfenced ─▶ … ─▶ stopping

In: answers of the controller. Out: metadata records to the broker, the lease, loop lag.
Promises: the lease counts from a heartbeat's send time on a clock that runs during suspend [L16]; answers of a deposed
controller are refused; another start of the same broker ends this process with a clear line; a broker whose loop hangs
for half a lease gives its lease up by itself.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from millrace import limits
from millrace.core.lease import Lease
from millrace.errors import MillraceError, StaleIncarnation, Unreachable
from millrace.log.config import BrokerConfig
from millrace.log.controller_client import ControllerClient
from millrace.log.stats import BrokerStats
from millrace.model.messages import (
    Heartbeat,
    HeartbeatOk,
    Message,
    MetadataPoll,
    MetadataRecords,
    Register,
    Registered,
    ReplicaReport,
)
from millrace.ops.naps import next_look
from millrace.ops.ports import Ports

log = structlog.get_logger(__name__)

RETRY_S = 0.1
LAG_PROBE_S = 0.5       # eight looks within a lease; an idle broker should sleep
HEARTBEATS_IN_FLIGHT_MAX = 8


class Member(Protocol):
    """The broker, as its membership sees it."""

    def metadata_index(self) -> int: ...
    def registered(self, index: int) -> None: ...
    async def wait_for_index(self, index: int, timeout_s: float | None = None) -> None: ...
    async def replay(self, answer: MetadataRecords) -> None: ...
    def changed_replicas(self) -> tuple[ReplicaReport, ...]: ...
    def disk_free_bytes(self) -> int: ...
    def disk_is_full(self) -> bool: ...
    def trouble(self) -> str: ...
    def lease_lost(self, why: str) -> None: ...
    def fatal(self, error: MillraceError) -> None: ...


class Membership:
    def __init__(
        self, config: BrokerConfig, ports: Ports, controller: ControllerClient, member: Member, stats: BrokerStats
    ) -> None:
        self._config, self._ports, self._controller, self._member, self._stats = (
            config, ports, controller, member, stats,
        )
        self.lease = Lease(config.lease_s)
        self.incarnation = -1
        self.fenced = True
        self.ready = False
        self.stopping = False
        self.may_stop = asyncio.Event()
        self.unfenced = asyncio.Event()
        self._registered_index = 0
        self._sequence = 0
        self._had_lease = False
        self._given_up_at = -math.inf      # answers to heartbeats sent before this extend nothing
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._in_flight = 0
        self._polling: asyncio.Task[Message] | None = None
        controller.on_moved.append(self._controller_moved)
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # -- start and stop --------------------------------------------------------------------------------------------

    async def register(self, message: Register) -> None:
        """Until a controller answered; a repeat of the same start gets the same incarnation."""
        said = ""
        while True:
            try:
                answer = await self._controller.ask(message)
                assert isinstance(answer, Registered)
            except StaleIncarnation:
                raise
            except MillraceError as e:
                if not e.retriable:
                    raise
                if str(e) != said:
                    log.info("waiting for a controller to register with", why=str(e))
                    said = str(e)
                await asyncio.sleep(RETRY_S)
                continue
            self.incarnation = answer.incarnation
            self._registered_index = answer.index
            self._member.registered(answer.index)
            log.info("registered", broker=message.broker, incarnation=answer.incarnation, index=answer.index)
            return

    async def catch_up(self) -> None:
        """Start the metadata poll and return when this registration has been replayed."""
        self._spawn(self._poll, "metadata poll")
        await self._member.wait_for_index(self._registered_index)

    def start_heartbeats(self) -> None:
        self.beat()
        self._probe(asyncio.get_running_loop().time())

    async def stop(self, grace_s: float) -> bool:
        """Ask to be let go: leaders move first. False when nobody said so within the grace time."""
        self.stopping = True
        self.beat()
        try:
            async with asyncio.timeout(grace_s):
                await self.may_stop.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- heartbeats and lease --------------------------------------------------------------------------------------

    def lease_valid(self) -> bool:
        return self.lease.valid(self._ports.clock.now())

    def beat(self) -> None:
        """The heartbeat's own timer: it does not wait for answers, so a lost one costs nothing but itself."""
        timer = self._timers.pop("beat", None)
        if timer is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers["beat"] = loop.call_later(self._config.heartbeat_s, self.beat)
        if self._in_flight < HEARTBEATS_IN_FLIGHT_MAX:
            self._in_flight += 1
            self._spawn(self._heartbeat, "heartbeat")

    async def _heartbeat(self) -> None:
        try:
            self._sequence += 1
            sent_at = self._ports.clock.now()
            self.lease.sent(sent_at)
            self._stats.heartbeats_sent += 1
            # Short, so that a controller that hangs is looked for elsewhere before the lease is over.
            answer = await self._controller.ask(self._message(sent_at), self._config.lease_s / 4)
            assert isinstance(answer, HeartbeatOk)
            self._answered(answer)
        except StaleIncarnation as e:
            self._member.fatal(e)
        except MillraceError as e:
            self._stats.heartbeats_failed += 1
            log.debug("heartbeat not answered", error=str(e), code=e.code)
        finally:
            self._in_flight -= 1

    def _message(self, sent_at: float) -> Heartbeat:
        return Heartbeat(
            broker=self._config.broker_id, incarnation=self.incarnation, sequence=self._sequence, sent_at=sent_at,
            metadata_index=self._member.metadata_index(), ready=self.ready, stopping=self.stopping,
            loop_lag_s=self._stats.loop_lag_s, disk_free_bytes=self._member.disk_free_bytes(),
            changed=self._member.changed_replicas(), disk_is_full=self._member.disk_is_full(),
            trouble=self._member.trouble(),
        )

    def _answered(self, answer: HeartbeatOk) -> None:
        if answer.incarnation != self.incarnation:
            return
        now = self._ports.clock.now()
        delay_s = now - answer.sent_at
        self._stats.heartbeat_delay_s = delay_s
        self._stats.heartbeat_delay_max_s = max(self._stats.heartbeat_delay_max_s, delay_s)
        if answer.may_stop:
            self.may_stop.set()
        if answer.fenced:
            if self._had_lease:
                self._give_up_lease("the controller fenced this broker")
            self.fenced = True
            self.unfenced.clear()
            return
        self.fenced = False
        if answer.sent_at > self._given_up_at:
            self.lease.answered(answer.sent_at)
        self._had_lease = self.lease.valid(now)
        self._watch_expiry()
        self.unfenced.set()

    def _watch_expiry(self) -> None:
        """At the end of the lease those who wait for an acknowledgement are told, not left to their time-outs."""
        timer = self._timers.pop("lease", None)
        if timer is not None:
            timer.cancel()
        left_s = self.lease.expires_at - self._ports.clock.now()
        if left_s > 0:
            self._timers["lease"] = asyncio.get_running_loop().call_later(left_s + 0.001, self._expired)

    def _expired(self) -> None:
        if self.lease_valid():
            self._watch_expiry()
        elif self._had_lease:
            self._give_up_lease("no heartbeat was answered in time")

    def _give_up_lease(self, why: str) -> None:
        self._had_lease = False
        self._given_up_at = self._ports.clock.now()
        self.lease.revoked()
        self._stats.lease_losses += 1
        log.warning("lease lost: no writes until the controller answers", why=why)
        self._member.lease_lost(why)

    def end_lease(self, why: str) -> None:
        """For good: this process is ending, whatever is still answered."""
        if self._had_lease:
            self._give_up_lease(why)
        self._given_up_at = math.inf
        self.lease.revoked()

    def _probe(self, expected_at: float) -> None:
        """Loop lag is a safety value: whoever runs late may believe in a lease that is over."""
        loop = asyncio.get_running_loop()
        lag_s = max(0.0, loop.time() - expected_at)
        self._stats.loop_lag_s = max(lag_s, self._stats.loop_lag_s * 0.5)     # fades within seconds
        self._stats.loop_lag_max_s = max(self._stats.loop_lag_max_s, lag_s)
        if lag_s > self._config.lease_s / 2 and self._had_lease:
            self._give_up_lease(f"the loop ran {lag_s:.2f} s late")
        again_at = next_look(loop.time(), LAG_PROBE_S)
        self._timers["probe"] = loop.call_at(again_at, self._probe, again_at)

    # -- metadata --------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        """Role changes come by long poll, not with the next heartbeat [L17]."""
        while True:
            try:
                answer = await self._poll_once()
                if answer is not None:
                    await self._member.replay(answer)
            except StaleIncarnation as e:
                self._member.fatal(e)
                return
            except Unreachable:
                await asyncio.sleep(self._ports.random.uniform(0.0, 0.02))
            except MillraceError as e:
                log.warning("metadata poll failed", error=str(e), code=e.code)
                await asyncio.sleep(self._ports.random.uniform(RETRY_S / 2, RETRY_S))

    async def _poll_once(self) -> MetadataRecords | None:
        """None: the office moved while we waited; whoever holds it now must be asked."""
        message = MetadataPoll(
            broker=self._config.broker_id, incarnation=self.incarnation, index=self._member.metadata_index(),
            wait_s=limits.METADATA_WAIT_S,
        )
        asking = self._controller.ask(message, limits.METADATA_WAIT_S + limits.LINK_CALL_S)
        self._polling = asyncio.get_running_loop().create_task(asking)
        try:
            await asyncio.wait([self._polling])
            if self._polling.cancelled():
                return None
            answer = self._polling.result()
        finally:
            self._polling.cancel()
            self._polling = None
        assert isinstance(answer, MetadataRecords)
        return answer

    def _controller_moved(self) -> None:
        """A poll may hang at the former holder, which is stopped or cut off: ask the new one."""
        if self._polling is not None:
            self._polling.cancel()

    # -- tasks -----------------------------------------------------------------------------------------------------

    def _spawn(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        async def run() -> None:
            try:
                await work()
            except asyncio.CancelledError:
                raise
            except Exception as e:
                log.exception("membership failed", task=name)
                self._member.fatal(MillraceError(f"{name}: {type(e).__name__}: {e}"))

        task = asyncio.get_running_loop().create_task(run(), name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda t: self._tasks.pop(t, None))
