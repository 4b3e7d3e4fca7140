"""Seeds that are drawn, the same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, get_args

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    found: list[Any] = []

    @settings(max_examples=count, derandomize=True, database=None, phases=[Phase.generate], deadline=None,
              suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(example: Any) -> None:
        found.append(example)

    collect()
    return found


def of_union(union: Any, encoded: Callable[[Any], bytes]) -> Iterator[bytes]:
    """Some of each kind, encoded; those that are beyond what is encoded are left out."""
    for kind in get_args(union) or (union,):
        for one in drawn(st.from_type(kind), 8):
            with suppress(OverflowError, UnicodeEncodeError, TypeError):
                yield encoded(one)
