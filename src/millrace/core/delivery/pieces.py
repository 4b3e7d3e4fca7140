"""The pieces of one writing, in the order of the source, with their places in the sequences of their targets [K5, L28].

    WAITING ─▶ SENT ─▶ DELIVERED        refused or in doubt: WAITING again, with the same sequence
                 └──▶ TOO_LARGE ─▶ replaced: two halves, or its one row in the quarantine

Promise: a sequence that was sent and not surely refused stays with its rows: a copy may still be on its way, and must
meet the log as a repeat. Pieces close up behind a replaced one only if none of them is in doubt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from millrace.core.producers import advance
from millrace.model.ids import TopicPartition
from millrace.model.positions import Point


class Send(NamedTuple):
    """`poison`: why the row goes to the quarantine."""

    target: TopicPartition
    sequence: int
    points: Sequence[Point]
    poison: str
    number: int     # of the piece
    attempt: int


class State(Enum):
    WAITING = auto()
    SENT = auto()
    TOO_LARGE = auto()
    DELIVERED = auto()


class Item:
    __slots__ = ("attempt", "doubts", "number", "offset", "points", "poison", "sequence", "state", "target", "why")

    def __init__(self, number: int, target: TopicPartition, points: Sequence[Point], poison: str) -> None:
        self.number, self.target, self.points, self.poison = number, target, points, poison
        self.state = State.WAITING
        self.sequence: int | None = None
        self.attempt = self.doubts = 0      # sends; sends without an answer that says what became of them
        self.offset = -1
        self.why = ""                       # of TOO_LARGE

    @property
    def is_delivered(self) -> bool:
        return self.state is State.DELIVERED


class Pieces:
    __slots__ = ("_by_number", "_head", "_numbers", "items", "next", "out", "out_of")

    def __init__(self, sequences: Mapping[TopicPartition, int]) -> None:
        self.items: list[Item] = []
        self.next = dict(sequences)
        self.out = 0                        # sent and not settled
        self.out_of: Counter[TopicPartition] = Counter()
        self._by_number: dict[int, Item] = {}
        self._numbers = self._head = 0

    def add(self, target: TopicPartition, points: Sequence[Point], poison: str = "") -> None:
        self.items.append(self._new(target, points, poison))

    def _new(self, target: TopicPartition, points: Sequence[Point], poison: str) -> Item:
        self._numbers += 1
        item = self._by_number[self._numbers] = Item(self._numbers, target, points, poison)
        return item

    def get(self, number: int) -> Item | None:
        return self._by_number.get(number)

    def undelivered(self) -> Iterator[Item]:
        while self._head < len(self.items) and self.items[self._head].is_delivered:
            self._head += 1
        return (item for item in self.items[self._head :] if not item.is_delivered)

    def send(self, item: Item) -> Send:
        if item.sequence is None:
            item.sequence = self.next.get(item.target, 0)
            self.next[item.target] = advance(item.sequence, len(item.points))
        item.state = State.SENT
        item.attempt += 1
        item.doubts += 1
        self.out += 1
        self.out_of[item.target] += 1
        return Send(item.target, item.sequence, item.points, item.poison, item.number, item.attempt)

    def settled(self, item: Item, state: State) -> None:
        if item.state is State.SENT:
            self.out -= 1
            self.out_of[item.target] -= 1
        item.state = state

    def is_first_of_target(self, item: Item) -> bool:
        return next(other for other in self.undelivered() if other.target == item.target) is item

    def close_up(self, gap: Item) -> bool:
        """The pieces behind `gap` take over its sequence. False: one of them may be in the log, or on its way there."""
        at = self.items.index(gap)
        behind = [item for item in self.items[at + 1 :] if item.target == gap.target and item.sequence is not None]
        if any(item.doubts or item.is_delivered for item in behind):
            return False
        self.hand_back((gap, *behind))
        return True

    def hand_back(self, items: Iterable[Item]) -> None:
        """In their order. They leave their sequences to whoever is sent next."""
        for item in reversed(list(items)):
            if item.sequence is not None:
                self.next[item.target] = item.sequence
                item.sequence = None

    def replace(self, item: Item, parts: Iterable[tuple[TopicPartition, Sequence[Point], str]]) -> None:
        at = self.items.index(item)
        self.items[at : at + 1] = [self._new(*part) for part in parts]
        del self._by_number[item.number]
