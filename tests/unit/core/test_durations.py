"""Times and sizes as people say them."""

from __future__ import annotations

import pytest

from millrace.core.durations import duration_text, size_text


@pytest.mark.parametrize(("seconds", "text"), [
    (0.0, "0.0 s"), (119.9, "119.9 s"), (600.0, "10.0 min"), (36_000.0, "10.0 h"), (864_000.0, "10.0 days"),
    (12_465_818_768.9, "more than a year"),
])
def test_A2_a_time_is_said_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(("size", "text"), [
    (0, "0 B"), (1023, "1023 B"), (3_000, "2.9 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3,072.0 GiB")])
def test_A2_a_size_that_is_small_is_not_called_nothing(size: int, text: str) -> None:
    assert size_text(size) == text
