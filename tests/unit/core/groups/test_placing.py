"""A group's partition is the one that Kafka's own tools compute."""

from __future__ import annotations

import pytest

from millrace.core.groups.placing import partition_of

INT_MAX = 2**31 - 1


@pytest.mark.parametrize(("group", "java_hash"), [
    ("", 0), ("hello", 99162322), ("Aa", 2112), ("BB", 2112),
    ("polygenelubricants", -(2**31)), ("ü", 252), ("\U0001f600", 1772899),
])
def test_L21_the_hash_is_javas_without_its_sign(group: str, java_hash: int) -> None:
    assert partition_of(group, INT_MAX) == (java_hash & INT_MAX) % INT_MAX
    assert partition_of(group, 50) == (java_hash & INT_MAX) % 50
