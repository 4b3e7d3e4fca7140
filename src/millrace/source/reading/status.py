"""What a reader shows of itself: plain values that its owner reads when somebody asks [S9, A4].

In: numbers the reader sets as it goes. Out: the same, for the API, the metrics and whoever supervises. Nothing here
decides anything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from millrace.model.tables import Lsn, Oid

# starting ──▶ copying ──▶ streaming ◀──▶ waiting (the log or the slot)      needs_copy: streams, a table must be copied
#     ▲ └──────────────────────│ ▲
#     └────── retrying ◀───────┘ └── failed: somebody must act (`next_step`); tried again now and then
ReaderState = Literal[
    "starting", "copying", "streaming", "needs_copy", "waiting", "retrying", "failed", "stopping"
]


@dataclass(slots=True)
class SlotStatus:
    """The slot as the server last described it."""

    state: str = "unknown"                   # reserved, extended, unreserved, lost, missing, unknown
    retained_bytes: int | None = None        # WAL that only this slot keeps
    budget_bytes: int | None = None          # above it the server throws WAL away, or we warn
    full_in_s: float | None = None           # at the present rate; None: not filling
    warning: str = ""


@dataclass(slots=True)
class CopyStatus:
    """One copy: what it has done in this life is beside what its records say."""

    copy: int
    oid: Oid
    kind: Literal["snapshot", "watermark"]
    state: Literal["waiting", "running", "done"]
    share: float                             # 0 to 1
    rows: int
    bytes: int
    eta_s: float | None = None
    why: str = ""                            # what holds it up
    failures: int = 0                        # attempts at one of its chunks, in a row
    attempts_on: dict[str, int] = field(default_factory=dict)   # of this life, by where they run or ran: spark, process


@dataclass(frozen=True, slots=True)
class Uncarried:
    """Why a table that the rules take is not carried, and what would change that."""

    schema: str
    name: str
    why: str
    next_step: str


@dataclass(slots=True)
class ReaderStatus:
    """`state` with `why`: what it does and, if it is not well, what somebody should do. Times: `ports.clock.now()`."""

    state: ReaderState = "starting"
    why: str = ""
    since: float = 0.0
    generation: int = 0
    received: Lsn = 0                        # end of what the server has sent
    server_end: Lsn = 0                      # end of the server's WAL, as its keep-alives say
    resolved: Lsn = 0                        # all up to here is in the log, durably
    lag_s: float | None = None               # age of the oldest change that is not resolved; 0: none
    rows: int = 0
    bytes: int = 0                           # of values appended to table partitions
    batches: int = 0
    marks: int = 0
    transactions: int = 0
    spooled_bytes: int = 0                   # of streamed transactions that have not committed
    rows_of: dict[Oid, int] = field(default_factory=dict)
    slot: SlotStatus = field(default_factory=SlotStatus)
    copies: list[CopyStatus] = field(default_factory=list)
    next_step: str = ""                      # what ends the state, where only somebody else can
    code: str = ""                           # of the error behind `why`; empty: it is well, or no error is the reason
    refused: str = ""                        # why new connections are refused while the stream goes on; empty: not
    uncarried: tuple[Uncarried, ...] = ()    # tables that the rules take
    warnings: dict[str, str] = field(default_factory=dict)   # what is not well though it streams, by what it is about
    rows_per_s: float = 0.0                  # over the last seconds
    pending_bytes: int = 0                   # handed to the log, not acknowledged
    reconnects: int = 0

    def say(self, state: ReaderState, why: str = "", *, now: float, next_step: str = "",
            code: str = "") -> bool:
        """True if it is news. `since` counts from when the state began."""
        news = (state, why) != (self.state, self.why)
        if state != self.state:
            self.since = now
        self.state, self.why, self.next_step, self.code = state, why, next_step, code
        return news

    def warn(self, about: str, text: str) -> bool:
        """Empty text: it is over. True if it is news."""
        if self.warnings.get(about, "") == text:
            return False
        if text:
            self.warnings[about] = text
        else:
            del self.warnings[about]
        return True


class Pace:
    """Rows per second, over a window."""

    def __init__(self, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._counted: deque[tuple[float, int]] = deque()

    def count(self, rows: int, now: float) -> float:
        """The pace with these."""
        counted = self._counted
        if rows:
            counted.append((now, rows))
        while counted and counted[0][0] < now - self._window_s:
            counted.popleft()
        return sum(rows for _, rows in counted) / self._window_s
