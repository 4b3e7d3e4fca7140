"""The source's office in the store: its records, written under the present token only."""

from __future__ import annotations

from typing import TypeVar

from millrace.core.decision import SourceDecision
from millrace.core.sources.copies import Copies
from millrace.core.sources.registry import SourceState
from millrace.errors import StaleToken
from millrace.model.sources import decode_source, encode_record

T = TypeVar("T")


class Store:
    def __init__(self, *, flaws: frozenset[str]) -> None:
        self.epoch = 0
        self.state = SourceState("shop", copies=Copies(flaws))

    def write(self, decision: SourceDecision[T], *, epoch: int) -> T:
        if epoch != self.epoch:
            raise StaleToken(f"epoch {epoch}, the office is held under {self.epoch}")
        for record in decision.records:
            self.state.replay(decode_source(encode_record(record)))
        return decision.reply
