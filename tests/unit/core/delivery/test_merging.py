"""Copies and stream of a table, merged: whoever upserts by key has the source's rows in the end."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.delivery.merging import FLAWS
from millrace.core.sources.reader import NO_FLAWS, SEQ_MAX
from support_merging import PARTITIONS, Consumer, Row, World


def played(seed: int, flaws: frozenset[str] = NO_FLAWS) -> list[str]:
    """What is wrong in the end."""
    random = Random(seed)
    world = World(random)
    consumer = Consumer(world, flaws)
    for _ in range(120):
        what = random.random()
        if what < 0.25:
            world.commit()
        elif what < 0.35:
            world.flush(random.randrange(PARTITIONS))
        elif what < 0.42:
            world.mark()
        elif what < 0.65:
            world.copy_step()
        elif what < 0.75:
            consumer.read_on(random.randint(1, 6))
        else:
            consumer.step(random.randrange(PARTITIONS))
    world.settle()
    for _ in range(3_000):
        consumer.read_on(len(world.progress))
        if not any(consumer.step(partition) for partition in range(PARTITIONS)):
            break
    else:
        return ["it does not come to an end"]
    wrong = [f"{consumer.upserted()}, the source has {world.rows}"] if consumer.upserted() != world.rows else []
    for rows in consumer.target:
        wrong += [f"twice: {what}" for what, n in Counter((r.key, r.lsn, r.seq) for r in rows).items() if n > 1]
        wrong += misplaced(rows, world.at - 1)
    return wrong


def misplaced(rows: list[Row], snapshot: int) -> list[str]:
    """The snapshot comes before all changes; changes of a key that a window contains come before it."""
    wrong: list[str] = []
    copied: dict[int | None, int] = {}
    changes = 0
    for row in rows:
        if row.seq != SEQ_MAX:
            changes += 1
            if row.lsn <= copied.get(row.key, 0):
                wrong.append(f"{row} behind a copy as of {copied[row.key]}")
            continue
        if row.lsn == snapshot and changes:
            wrong.append(f"{row} of the snapshot behind {changes} changes")
        copied[row.key] = max(row.lsn, copied.get(row.key, 0))
    return wrong


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1 << 32))
def test_S4_S5_who_upserts_by_key_has_the_rows_of_the_source_and_none_came_twice(seed: int) -> None:
    assert played(seed) == []


@pytest.mark.parametrize("flaw", sorted(FLAWS))
def test_S4_S5_each_planted_mistake_is_found(flaw: str) -> None:
    assert any(played(seed, frozenset({flaw})) for seed in range(40))
