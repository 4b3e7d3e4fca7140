"""Times and sizes as people say them: a number they can read, and the unit that fits."""

from __future__ import annotations

YEAR_S = 365 * 86_400.0
_STEPS = ((120.0, 1.0, "s"), (7_200.0, 60.0, "min"), (2 * 86_400.0, 3_600.0, "h"), (YEAR_S, 86_400.0, "days"))


def duration_text(seconds: float) -> str:
    for below, unit_s, word in _STEPS:
        if seconds < below:
            return f"{seconds / unit_s:.1f} {word}"
    return "more than a year"


def size_text(size: int) -> str:
    for power, word in ((0, "B"), (10, "KiB"), (20, "MiB")):
        if size < 1 << (power + 10):
            return f"{size} B" if power == 0 else f"{size / (1 << power):.1f} {word}"
    return f"{size / (1 << 30):,.1f} GiB"
