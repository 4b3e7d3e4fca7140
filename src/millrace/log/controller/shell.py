"""ControllerShell: a broker that may become controller, and is one while it holds the office.

    candidate (store.campaign) ─▶ office won ─▶ load, repair ─▶ serve ─▶ deposed, late or a failed write ─▶ candidate

In: the store, control messages (from links, or from the broker of this process), hints that a peer is gone.
Out: replies; NotController whenever the office is not certainly ours.
Promise: what stands in the store is read completely before the first decision; one failed write or a tenure that was
not renewed in time ends the reign at once, and the next one starts from the store again [L18].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from millrace.core.cluster import ClusterState
from millrace.errors import MillraceError, NotController
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
from millrace.store.campaign import Campaign, first_end_of
from millrace.store.contract import Candidate, Store

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
        self._campaign = Campaign(store, ports, config.campaign, me, office=OFFICE, serve=self._rule)
        self._reign: Reign | None = None
        self.stats = ControllerStats()

    # -- what others call ------------------------------------------------------------------------------------------
    def start(self) -> None:
        self._campaign.start()

    async def stop(self) -> None:
        """Hand the office over: released, so that the next candidate does not wait for its end."""
        await self._campaign.stop()

    @property
    def trouble(self) -> MillraceError | None:
        """Why the store could not give the office when last asked."""
        return self._campaign.trouble

    @property
    def reign(self) -> Reign | None:
        """The running reign, or None while the office is not certainly ours."""
        return self._reign if self._campaign.holding else None

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
        self._campaign.hint_holder_lost()

    # -- in office -------------------------------------------------------------------------------------------------
    async def _rule(self) -> str:
        """Load, repair, serve; returns why it had to end."""
        self.stats.tenures += 1
        started = self._ports.clock.now()
        try:
            writer = await self._load()
        except MillraceError as error:
            log.error("metadata cannot be read", error=str(error), code=error.code)
            return f"metadata cannot be read: {error}"
        reign = Reign(self._ports, self._config, self._campaign.tenure, writer, self.stats)
        try:
            why = await first_end_of(lambda: self._write(writer), lambda: self._watch(reign, started))
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
            self._store, self._ports, self._campaign.tenure.token, state, history, self.stats,
            snapshot_every_records=self._config.snapshot_every_records, snapshot_index=snapshot_index,
        )

    async def _replay(self, state: ClusterState, records: list[tuple[int, ControllerRecord]]) -> None:
        """In slices: the tenure is renewed by the same loop."""
        for n, (index, record) in enumerate(records):
            state.replay(index, record)
            if n % REPLAY_SLICE == REPLAY_SLICE - 1:
                await asyncio.sleep(0)
