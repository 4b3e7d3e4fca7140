"""Campaign: a process that wants an office, and serves in it while it certainly holds it.

    candidate: look who holds the office ─▶ vacant ─▶ acquire ─▶ serve ─▶ deposed or late ─▶ candidate

In: the store, what to do in office, hints that the holder is gone. Out: tenures, one after another.
Promises: `serve` runs only under a token that was won before it began and is cancelled as soon as the tenure is over:
not renewed in time, or deposed [L18]; whatever ends it, the office is released, and the campaign goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from millrace import limits
from millrace.core.tenure import Tenure
from millrace.errors import Deposed, MillraceError, OfficeHeld
from millrace.ops.naps import nap, next_look
from millrace.ops.ports import Ports
from millrace.store.contract import Candidate, Holder, Store

log = structlog.get_logger(__name__)

Serve = Callable[[], Awaitable[str]]      # in office until it returns why it had to end


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignTimes:
    tenure_s: float = limits.TENURE_S
    renew_s: float = limits.TENURE_RENEW_S
    clock_drift_max: float = limits.CLOCK_DRIFT_MAX
    tick_s: float = 0.5                # how late proof of the death of a holder may be noticed without a hint
    eager_s: float = 0.5               # after a hint the holder is looked for in short steps, this long
    eager_step_s: float = 0.01         # a killed process closes its sockets a little before it is gone


class Campaign:
    def __init__(
        self, store: Store, ports: Ports, times: CampaignTimes, me: Candidate, *, office: str, serve: Serve
    ) -> None:
        self._store, self._ports, self._times, self._me = store, ports, times, me
        self._office, self._serve = office, serve
        self.tenure = Tenure(tenure_s=times.tenure_s, renew_s=times.renew_s, drift=times.clock_drift_max)
        self._holder: Holder | None = None
        self.trouble: MillraceError | None = None      # why the store could not give the office when last asked
        self._eager_until = 0.0
        self._poke = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- what others call ------------------------------------------------------------------------------------------
    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Hand the office over: released, so that the next candidate does not wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def holding(self) -> bool:
        """The office is certainly ours now."""
        return self.tenure.valid(self._ports.clock.now())

    @property
    def other(self) -> Holder | None:
        """Who held the office when we last looked; None while we hold it or when nobody does."""
        return self._holder

    def hint_holder_lost(self) -> None:
        """The link to the holder broke: try for the office now, there may be proof that it is gone."""
        self._eager_until = self._ports.clock.now() + self._times.eager_s
        self.tenure.hint(self._ports.clock.now())
        self._poke.set()

    # -- candidate -------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            if (self._holder_is_gone() or self.tenure.due(self._ports.clock.now())) and await self._try():
                await self._hold()
            await self._nap()

    def _holder_is_gone(self) -> bool:
        return self._holder is not None and self._ports.processes.is_gone(self._holder.candidate.process)

    async def _nap(self) -> None:
        """Until it is time to try, in steps short enough to notice a gone holder."""
        now = self._ports.clock.now()
        loop_now = asyncio.get_running_loop().time()
        eager = now < self._eager_until
        look_at = loop_now + self._times.eager_step_s if eager else next_look(loop_now, self._times.tick_s)
        self._poke.clear()
        await nap(self._poke, min(look_at, loop_now + max(self.tenure.wait_s(now), 0.001)))

    async def _try(self) -> bool:
        """One look at the office, and an attempt if it is free."""
        try:
            self._holder = await self._store.holder(self._office)
            if self._holder is not None and not self._holder.vacant:
                self._wait(self._holder.expires_in_s)
                return False
            sent_at = self._ports.clock.now()
            token = await self._store.acquire(self._office, self._me, self._times.tenure_s)
            self.trouble = None
        except OfficeHeld:
            self.trouble = None
            self._wait(self._times.tenure_s)
            return False
        except MillraceError as error:
            self.trouble = error
            log.warning("cannot try for an office", office=self._office, error=str(error), code=error.code)
            self._wait(self._times.tenure_s)
            return False
        self.tenure.won(sent_at, token)
        return True

    def _wait(self, expires_in_s: float) -> None:
        """Look again when the holder's tenure ends, or in a renewal's time; jitter keeps candidates apart."""
        again_s = max(0.01, min(expires_in_s, self._times.renew_s)) * self._ports.random.uniform(1.0, 1.2)
        self.tenure.held_by_other(self._ports.clock.now(), again_in_s=again_s)

    # -- holder ----------------------------------------------------------------------------------------------------
    async def _hold(self) -> None:
        """From the office won to the office lost, whatever ends it."""
        token = self.tenure.token
        self._holder = None
        log.info("office won", office=self._office, member=self._me.member, token=token)
        try:
            why = await first_end_of(self._renew, self._serve)
        except asyncio.CancelledError:
            await self._left(token, "stopped")
            raise
        except Exception as error:
            # A mistake of ours must not leave the cluster without candidates; others get the first chance.
            log.exception("the holder of an office failed", office=self._office)
            await self._left(token, f"failed: {error!r}", again_in_s=self._times.tenure_s)
        else:
            await self._left(token, why)

    async def _left(self, token: int, why: str, again_in_s: float | None = None) -> None:
        again_s = self._ports.random.uniform(0.01, 0.05) if again_in_s is None else again_in_s
        self.tenure.lost(self._ports.clock.now(), again_in_s=again_s)
        log.info("office left", office=self._office, member=self._me.member, token=token, why=why)
        await self._release(token)

    async def _release(self, token: int) -> None:
        """Best effort: a release that does not get through costs the others one tenure."""
        try:
            async with asyncio.timeout(self._times.renew_s):
                await self._store.release(self._office, token)
        except (MillraceError, TimeoutError) as error:
            log.info("office not released", office=self._office, token=token, error=str(error))

    async def _renew(self) -> str:
        while True:
            await asyncio.sleep(self.tenure.wait_s(self._ports.clock.now()))
            sent_at = self._ports.clock.now()
            if not self.tenure.valid(sent_at):
                return "the tenure was not renewed in time"
            try:
                async with asyncio.timeout(self.tenure.left_s(sent_at)):
                    await self._store.renew(self._office, self.tenure.token, self._times.tenure_s)
            except Deposed as error:
                return f"deposed: {error}"
            except (MillraceError, TimeoutError) as error:
                log.warning("tenure not renewed", office=self._office, error=str(error))
                self.tenure.renew_failed(self._ports.clock.now())
            else:
                self.tenure.renewed(sent_at)


async def first_end_of(*works: Serve) -> str:
    """What the first of them returned or raised; the others are cancelled and have ended."""
    tasks = [asyncio.ensure_future(work()) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _cancel(tasks)
        raise
    await _cancel(tasks)
    return next(task for task in tasks if task in done).result()


async def _cancel(tasks: Sequence[asyncio.Future[str]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
