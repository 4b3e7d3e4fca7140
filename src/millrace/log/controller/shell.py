"""ControllerShell: a broker that may become controller, and is one while it holds the office.

    candidate: look who holds the office ─▶ vacant ─▶ acquire ─▶ load, repair ─▶ serve ─▶ deposed or late ─▶ candidate

In: the store, control messages (from links, or from the broker of this process), hints that a peer is gone.
Out: replies; NotController whenever the office is not certainly ours.
Promise: what stands in the store is read completely before the first decision; one failed write or a tenure that was
not renewed in time ends the reign at once, and the next one starts from the store again [L18].
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from millrace.core.cluster import ClusterState
from millrace.core.tenure import Tenure
from millrace.errors import Deposed, MillraceError, NotController, OfficeHeld
from millrace.log.controller.codec import decode_record, decode_snapshot
from millrace.log.controller.config import ControllerConfig
from millrace.log.controller.history import History
from millrace.log.controller.reign import Reign
from millrace.log.controller.stats import ControllerStats
from millrace.log.controller.writer import OFFICE, Writer
from millrace.model.ids import BrokerId, TopicPartition
from millrace.model.messages import Message
from millrace.model.records import ControllerRecord
from millrace.ops.ports import Ports
from millrace.store.contract import Candidate, Holder, Store

log = structlog.get_logger(__name__)

READ_PAGE = 2_000      # records read from the store at once
REPLAY_SLICE = 500     # records replayed before the loop may do other work


class ControllerShell:
    def __init__(
        self, store: Store, ports: Ports, config: ControllerConfig, me: Candidate, *,
        busy: Callable[[], Iterable[TopicPartition]] = tuple,
    ) -> None:
        """`busy`: partitions that this process has lately seen to grow; a new reign looks after those first."""
        self._busy = busy
        self._store, self._ports, self._config, self._me = store, ports, config, me
        self._tenure = Tenure(tenure_s=config.tenure_s, renew_s=config.renew_s, drift=config.clock_drift_max)
        self._reign: Reign | None = None
        self._holder: Holder | None = None
        self._eager_until = 0.0
        self._poke = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.stats = ControllerStats()

    # -- what others call ------------------------------------------------------------------------------------------
    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._campaign())

    async def stop(self) -> None:
        """Hand the office over: released, so that the next candidate does not wait for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @property
    def reign(self) -> Reign | None:
        """The running reign, or None while the office is not certainly ours."""
        return self._reign if self._tenure.valid(self._ports.clock.now()) else None

    @property
    def is_controller(self) -> bool:
        return self.reign is not None

    async def handle(self, sender: BrokerId, message: Message) -> Message:
        """The reply, or NotController while this process does not hold the office."""
        reign = self.reign
        if reign is None:
            raise NotController(f"broker {self._me.member} is not the controller")
        return await reign.handle(sender, message)

    def connection_lost(self, broker: BrokerId) -> None:
        """A broker's link broke. Suspicion, or the reason to look for proof."""
        if self._reign is not None:
            self._reign.connection_lost(broker)

    def hint_holder_lost(self) -> None:
        """The link to the holder broke: try for the office now, there may be proof that it is gone."""
        self._eager_until = self._ports.clock.now() + self._config.eager_s
        self._tenure.hint(self._ports.clock.now())
        self._poke.set()

    # -- candidate -------------------------------------------------------------------------------------------------
    async def _campaign(self) -> None:
        while True:
            if (self._holder_is_gone() or self._tenure.due(self._ports.clock.now())) and await self._try():
                await self._serve()
            await self._nap()

    def _holder_is_gone(self) -> bool:
        return self._holder is not None and self._ports.processes.is_gone(self._holder.candidate.process)

    async def _nap(self) -> None:
        """Until it is time to try, in steps short enough to notice a gone holder."""
        now = self._ports.clock.now()
        step_s = self._config.eager_step_s if now < self._eager_until else self._config.tick_s
        self._poke.clear()
        try:
            async with asyncio.timeout(min(step_s, max(self._tenure.wait_s(now), 0.001))):
                await self._poke.wait()
        except TimeoutError:
            pass

    async def _try(self) -> bool:
        """One look at the office, and an attempt if it is free."""
        try:
            self._holder = await self._store.holder(OFFICE)
            if self._holder is not None and not self._holder.vacant:
                self._wait(self._holder.expires_in_s)
                return False
            sent_at = self._ports.clock.now()
            token = await self._store.acquire(OFFICE, self._me, self._config.tenure_s)
        except OfficeHeld:
            self._wait(self._config.tenure_s)
            return False
        except MillraceError as error:
            log.warning("cannot try for the controller's office", error=str(error), code=error.code)
            self._wait(self._config.tenure_s)
            return False
        self._tenure.won(sent_at, token)
        return True

    def _wait(self, expires_in_s: float) -> None:
        """Look again when the holder's tenure ends, or in a renewal's time; jitter keeps candidates apart."""
        again_s = max(0.01, min(expires_in_s, self._config.renew_s)) * self._ports.random.uniform(1.0, 1.2)
        self._tenure.held_by_other(self._ports.clock.now(), again_in_s=again_s)

    # -- holder ----------------------------------------------------------------------------------------------------
    async def _serve(self) -> None:
        """From the office won to the office lost, whatever ends it."""
        token = self._tenure.token
        self._holder = None
        self.stats.tenures += 1
        log.info("controller's office won", broker=self._me.member, token=token)
        try:
            why = await self._first_end_of(self._renew, self._rule)
        except asyncio.CancelledError:
            await self._left(token, "stopped")
            raise
        except Exception as error:
            # A mistake of ours must not leave the cluster without candidates; others get the first chance.
            log.exception("the controller failed")
            await self._left(token, f"failed: {error!r}", again_in_s=self._config.tenure_s)
        else:
            await self._left(token, why)

    async def _left(self, token: int, why: str, again_in_s: float | None = None) -> None:
        again_s = self._ports.random.uniform(0.01, 0.05) if again_in_s is None else again_in_s
        self._tenure.lost(self._ports.clock.now(), again_in_s=again_s)
        log.info("controller's office left", broker=self._me.member, token=token, why=why)
        await self._release(token)

    async def _first_end_of(self, *works: Callable[[], Awaitable[str]]) -> str:
        tasks = [asyncio.ensure_future(work()) for work in works]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancel(tasks)
            raise
        await _cancel(tasks)
        return next(task for task in tasks if task in done).result()

    async def _release(self, token: int) -> None:
        """Best effort: a release that does not get through costs the others one tenure."""
        try:
            async with asyncio.timeout(self._config.renew_s):
                await self._store.release(OFFICE, token)
        except (MillraceError, TimeoutError) as error:
            log.info("office not released", token=token, error=str(error))

    async def _renew(self) -> str:
        while True:
            await asyncio.sleep(self._tenure.wait_s(self._ports.clock.now()))
            sent_at = self._ports.clock.now()
            if not self._tenure.valid(sent_at):
                return "the tenure was not renewed in time"
            try:
                async with asyncio.timeout(self._tenure.left_s(sent_at)):
                    await self._store.renew(OFFICE, self._tenure.token, self._config.tenure_s)
            except Deposed as error:
                return f"deposed: {error}"
            except (MillraceError, TimeoutError) as error:
                log.warning("tenure not renewed", error=str(error))
                self._tenure.renew_failed(self._ports.clock.now())
            else:
                self._tenure.renewed(sent_at)

    async def _rule(self) -> str:
        """Load, repair, serve; returns why it had to end."""
        started = self._ports.clock.now()
        try:
            writer = await self._load()
        except MillraceError as error:
            log.error("metadata cannot be read", error=str(error), code=error.code)
            return f"metadata cannot be read: {error}"
        reign = Reign(self._ports, self._config, self._tenure, writer, self.stats)
        try:
            why = await self._first_end_of(lambda: self._write(writer), lambda: self._watch(reign, started))
        except (Exception, asyncio.CancelledError):
            await self._end(reign)
            raise
        await self._end(reign)
        return why

    async def _end(self, reign: Reign) -> None:
        self._reign = None
        await reign.end()

    async def _write(self, writer: Writer) -> str:
        try:
            await writer.run()
        except MillraceError as error:
            return f"a write failed: {error}"
        raise AssertionError("the writer only ends by an error")

    async def _watch(self, reign: Reign, started: float) -> str:
        await reign.begin(self._busy())
        self._reign = reign
        self.stats.take_over_s = self._ports.clock.now() - started
        log.info("controller serves", token=reign.token, index=reign.state.index, take_over_s=self.stats.take_over_s)
        await reign.watch_brokers()
        raise AssertionError("the watch only ends by cancellation")

    async def _load(self) -> Writer:
        """Everything that stands in the store, replayed. No lower token can add to it any more."""
        state = ClusterState()
        snapshot_index = 0
        snapshot = await self._store.load_snapshot(OFFICE)
        if snapshot is not None:
            snapshot_index, blob = snapshot
            await self._replay(state, [(snapshot_index, record) for record in decode_snapshot(blob)])
            state.index = snapshot_index
        history = History(snapshot_index)
        while page := await self._store.read(OFFICE, state.index, READ_PAGE):
            records = [(index, decode_record(data)) for index, data in page]
            await self._replay(state, records)
            history.extend([record for _, record in records])
        return Writer(
            self._store, self._ports, self._tenure.token, state, history, self.stats,
            snapshot_every_records=self._config.snapshot_every_records, snapshot_index=snapshot_index,
        )


    async def _replay(self, state: ClusterState, records: list[tuple[int, ControllerRecord]]) -> None:
        """In slices: the tenure is renewed by the same loop."""
        for n, (index, record) in enumerate(records):
            state.replay(index, record)
            if n % REPLAY_SLICE == REPLAY_SLICE - 1:
                await asyncio.sleep(0)


async def _cancel(tasks: Sequence[asyncio.Future[str]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
