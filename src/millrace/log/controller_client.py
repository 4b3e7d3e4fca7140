"""Where the controller is, and one way to ask it: a local call when this broker holds the office, else its link.

In: the store's word on who holds the office, lost links, refusals. Out: answers, or NotController / Unreachable.
Promise: a message that may have reached a controller is not sent twice from here; its caller decides. Knowledge of the
controller never goes back to an older token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from millrace import limits
from millrace.errors import DiskFull, MillraceError, NotController, Unreachable
from millrace.link.pool import LinkPool
from millrace.log.stats import BrokerStats
from millrace.model.ids import BrokerId
from millrace.model.messages import Message
from millrace.ops.ports import Ports
from millrace.store.contract import Store

log = structlog.get_logger(__name__)

OFFICE = "controller"
NOBODY = -1
LOOK_EVERY_S = 0.05         # how often the store is asked while the controller is unknown


class LocalController(Protocol):
    """The controller's shell as its own broker sees it."""

    async def handle(self, sender: BrokerId, message: Message) -> Message:
        """The answer, or NotController while this process does not hold the office."""

    def hint_holder_lost(self) -> None:
        """The link to the holder broke: try for the office now, there may be proof that it is gone."""

    @property
    def trouble(self) -> MillraceError | None:
        """Why the store could not give the office when last asked."""


class ControllerClient:
    def __init__(
        self, me: BrokerId, ports: Ports, store: Store, pool: LinkPool, local: LocalController | None,
        stats: BrokerStats,
    ) -> None:
        self._me, self._ports, self._store, self._pool, self._local = me, ports, store, pool, local
        self._stats = stats
        self.id: BrokerId = NOBODY
        self.token = -1
        self.on_moved: list[Callable[[], None]] = []      # another process holds the office now
        self.trouble = ""           # why the store did not say who it is, when last asked
        self._looking: asyncio.Task[None] | None = None

    async def ask(self, message: Message, timeout_s: float = limits.LINK_CALL_S) -> Message:
        """The controller's answer; finds out who it is first. Raises its refusal, Unreachable or TimedOut."""
        deadline = self._ports.clock.now() + timeout_s
        while True:
            await self._known(deadline)
            asked, token = self.id, self.token
            try:
                answer = await self._send(asked, message, max(0.01, deadline - self._ports.clock.now()))
            except NotController:
                self.lost(asked, token)     # surely not carried out: ask the next one
                continue
            except Unreachable:
                self.lost(asked, token)
                raise
            self._refuse_older(answer)
            return answer

    async def _send(self, controller: BrokerId, message: Message, timeout_s: float) -> Message:
        if controller != self._me:
            return await self._pool.call(controller, message, timeout_s)
        if self._local is None:
            raise NotController("this broker is no candidate")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._local.handle(self._me, message)
        except TimeoutError:
            raise Unreachable("the controller in this process does not answer") from None

    def _refuse_older(self, answer: Message) -> None:
        token = getattr(answer, "token", self.token)
        if token < self.token:
            raise Unreachable(f"answer of token {token}, the controller has {self.token}")     # it may count, or not
        self.token = token

    def lost(self, controller: BrokerId, token: int) -> None:
        """This controller did not answer: forget it, unless another is known by now."""
        if self.id == controller and self.token == token:
            self.id = NOBODY

    def link_down(self, peer: BrokerId) -> None:
        """A link broke. If it was the controller's, candidates try for the office at once [L17, L18]."""
        if peer == self.id:
            self.id = NOBODY
            if self._local is not None:
                self._local.hint_holder_lost()

    async def _known(self, deadline: float) -> None:
        """Return when the controller is known; one look at a time serves all who wait."""
        while self.id == NOBODY:
            left_s = deadline - self._ports.clock.now()
            if left_s <= 0:
                raise Unreachable("no controller: none of the brokers holds the office yet")
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(self._look())
            await asyncio.wait([self._looking], timeout=left_s)
            trouble = self._local.trouble if self._local is not None else None
            if self.id == NOBODY and isinstance(trouble, DiskFull):
                raise Unreachable(f"no controller: its store has no room: {trouble}")   # waiting makes none

    async def _look(self) -> None:
        """One question to the store; a pause after an answer that helped nobody."""
        try:
            holder = await self._store.holder(OFFICE)
        except MillraceError as e:
            self._in_trouble(str(e))
            holder = None
        else:
            self.trouble = ""
        if holder is None or holder.vacant or holder.token < self.token:
            await asyncio.sleep(LOOK_EVERY_S)
            return
        member = holder.candidate.member
        if holder.token == self.token and member != self._me and not self._pool.connected(member):
            await asyncio.sleep(LOOK_EVERY_S)     # the one we just lost: maybe only its link; the pool redials
        if member != self._me:
            host, _, port = holder.candidate.address.rpartition(":")
            self._pool.set_address(member, host, int(port))
        if holder.token > self.token:
            self._stats.controller_changes += 1
            log.info("controller", broker=member, token=holder.token)
        moved = holder.token > self.token
        self.id, self.token = member, holder.token
        if moved:
            for callback in self.on_moved:
                callback()

    def _in_trouble(self, error: str) -> None:
        """Said when it changes: the store is asked many times a second."""
        if error != self.trouble:
            log.warning("the store does not say who is controller", error=error)
        self.trouble = error

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
