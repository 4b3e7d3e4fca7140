"""Who is a living capture: each says so by a lease in the store, and everybody can read who does.

In: this process's own description. Out: a lease renewed for as long as the process lives; the living captures.
Promise: of two processes that call themselves the same capture the one that lives stays, and the other is refused. One
that is provably gone, or not heard until its lease ends, is replaced; should it come back, it ends [C1].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from millrace import limits
from millrace.changefeed.looks import until_look
from millrace.core.feeds.predecessor import Predecessor
from millrace.errors import MemberHeld, MillraceError, StaleIncarnation, Unreachable
from millrace.model.ids import ProcessIdentity
from millrace.ops.ports import Ports
from millrace.store.contract import Store

log = structlog.get_logger(__name__)

PREFIX = "capture/"
CHANCES = 4                    # renewals within one lease
CLOCK_STEPS_MAX = 45           # doubling steps of a millisecond: a clock set back by a thousand years


class CaptureInfo(msgspec.Struct, frozen=True):
    """What a capture says of itself."""

    id: int
    incarnation: int
    address: str               # HTTP, host:port
    pid: int
    link: str = ""             # host:port where its links are answered; empty: it hosts no changefeeds
    process: ProcessIdentity | None = None
    host: str = ""             # name of its machine, for people

    def __str__(self) -> str:
        return f"process {self.pid}{f' on {self.host}' if self.host else ''}, HTTP {self.address}"


class Membership:
    """This process's lease. `lost`: another process has taken our place. `waits`: for what, while it starts."""

    def __init__(self, store: Store, ports: Ports, info: CaptureInfo, *, session_s: float,
                 lost: Callable[[MillraceError], None]) -> None:
        self._store, self._ports, self._session_s, self._lost = store, ports, session_s, lost
        self.info = info
        self._task: asyncio.Task[None] | None = None
        self._until = 0.0
        self.waits = ""

    @property
    def valid(self) -> bool:
        return self._ports.clock.now() < self._until

    async def start(self) -> None:
        """Returns when the lease stands. A clock that was set back since the last start is stepped over."""
        step, other = 0, Predecessor()
        while True:
            try:
                if await self._take(other):
                    break
            except StaleIncarnation:
                if step == CLOCK_STEPS_MAX:
                    raise
                later = self.info.incarnation + (1 << step)
                self.info = msgspec.structs.replace(self.info, incarnation=later)
                step += 1
            except Unreachable as error:
                log.warning("no lease yet", error=str(error), code=error.code)
                await asyncio.sleep(self._session_s / CHANCES)
        self.waits = ""
        self._task = asyncio.create_task(self._keep(), name="capture-lease")

    async def _take(self, other: Predecessor) -> bool:
        """False: another process has the lease, and may be dead. Raises MemberHeld when it is not."""
        try:
            await self._renew()
            return True
        except MemberHeld:
            held = next((lease for lease in await self._store.leases() if lease.member == self._name), None)
        if held is not None:
            holder = msgspec.msgpack.decode(held.info, type=CaptureInfo)
            if other.lives(self._ports.clock.now(), expires_in_s=held.expires_in_s):
                raise MemberHeld(
                    f"capture {self.info.id} is running: {holder}, heard {held.heard_ago_s:.1f} s ago; nothing was "
                    f"changed: stop that process first, or start this one with another --id")
            if not self.waits:
                log.warning("another process lives as this capture: waiting until it is heard, or its lease ends",
                            capture=self.info.id, holder=str(holder), heard_ago_s=round(held.heard_ago_s, 1),
                            ends_in_s=round(held.expires_in_s, 1))
            self.waits = f"waits for the end of the lease of {holder}, in {held.expires_in_s:.1f} s unless it is heard"
        await asyncio.sleep(limits.LEASE_LOOK_S)
        return False

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task, self._until = None, 0.0
        try:
            await self._store.lease(self._name, self.info.incarnation, 0.0, b"")
        except MillraceError as error:
            log.info("lease not ended", error=str(error))

    @property
    def _name(self) -> str:
        return f"{PREFIX}{self.info.id}"

    async def _renew(self) -> None:
        sent_at = self._ports.clock.now()
        await self._store.lease(self._name, self.info.incarnation, self._session_s, msgspec.msgpack.encode(self.info))
        self._until = sent_at + self._session_s

    async def _keep(self) -> None:
        while True:
            await until_look(self._session_s / CHANCES)
            try:
                await self._renew()
            except (StaleIncarnation, MemberHeld) as error:
                self._until = 0.0
                self._lost(error)
                return
            except MillraceError as error:
                log.warning("lease not renewed", error=str(error), code=error.code)


async def living(store: Store) -> list[CaptureInfo]:
    """The captures with a lease, by id."""
    found = [msgspec.msgpack.decode(lease.info, type=CaptureInfo) for lease in await store.leases()
             if lease.member.startswith(PREFIX) and lease.info]
    return sorted(found, key=lambda info: info.id)
