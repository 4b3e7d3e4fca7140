"""What `doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """error: it will not work, or will harm the application; warning: it will one day; info: good to know.

    `repair`: SQL, each statement on its own, outside a transaction. `restart`: it counts after a restart of the server.
    """

    severity: Severity
    code: str
    what: str
    repair: tuple[str, ...] = ()
    restart: bool = False


def say(severity: Severity, code: str, what: str, *repair: str, restart: bool = False) -> Finding:
    return Finding(severity, code, what, repair, restart)


def text_of(value: str | None) -> str:
    return value or "unnamed"
