"""ISR proposals of all partitions, in one message per turn of the loop [L8].

In: what the deciders of led partitions want. Out: AlterIsr to the controller, its results back to the deciders.
A proposal whose answer is lost is made again by the decider itself; nothing is kept here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from millrace.core.effects import ProposeIsr
from millrace.errors import MillraceError
from millrace.log.partition import Partition
from millrace.log.stats import BrokerStats
from millrace.model.ids import BrokerId, TopicPartition
from millrace.model.messages import AlterIsr, AlterIsrDone, IsrChange, Message

log = structlog.get_logger(__name__)

CHANGES_PER_MESSAGE_MAX = 1_000


class Asker(Protocol):
    async def ask(self, message: Message, timeout_s: float = ...) -> Message: ...


class Proposals:
    def __init__(
        self, me: BrokerId, controller: Asker, incarnation_of: Callable[[BrokerId], int], stats: BrokerStats
    ) -> None:
        self._me, self._controller, self._incarnation_of, self._stats = me, controller, incarnation_of, stats
        self._wanted: dict[Partition, ProposeIsr] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, partition: Partition, proposal: ProposeIsr) -> None:
        self._wanted[partition] = proposal
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        """A task starts in the next turn, so this turn's proposals travel together; later ones gather meanwhile."""
        try:
            while self._wanted:
                wanted = dict(list(self._wanted.items())[:CHANGES_PER_MESSAGE_MAX])
                for partition in wanted:
                    del self._wanted[partition]
                await self._propose(wanted)
        finally:
            self._task = None

    async def _propose(self, wanted: Mapping[Partition, ProposeIsr]) -> None:
        by_tp = {partition.tp: partition for partition in wanted}
        changes = tuple(self._change(partition, proposal) for partition, proposal in wanted.items())
        try:
            answer = await self._controller.ask(AlterIsr(self._me, self._incarnation_of(self._me), changes))
        except MillraceError as e:
            log.info("ISR proposals not answered", partitions=len(changes), error=str(e))
            return
        assert isinstance(answer, AlterIsrDone)
        for result in answer.results:
            partition = by_tp[TopicPartition(result.topic_id, result.partition)]
            proposal = wanted[partition]
            if result.error:
                self._stats.isr_proposals_refused += 1
            partition.replica.isr_answer(
                leader_epoch=proposal.leader_epoch, partition_epoch=proposal.partition_epoch, error=result.error
            )

    def _change(self, partition: Partition, proposal: ProposeIsr) -> IsrChange:
        """A member that has not fetched yet in this epoch stands with the incarnation the metadata has."""
        incarnations = tuple(
            incarnation if incarnation >= 0 else self._incarnation_of(broker)
            for broker, incarnation in zip(proposal.isr, proposal.incarnations, strict=True)
        )
        return IsrChange(*partition.tp, proposal.leader_epoch, proposal.partition_epoch, proposal.isr, incarnations)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
