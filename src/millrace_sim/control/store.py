"""The metadata store: offices by lease or by grant, records under token and index, leases of captures.

Records go through their bytes. What becomes durable is shown to the checkers here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millrace.model.spans import CaptureId

Owner = tuple[CaptureId, int]           # capture, incarnation


@dataclass(slots=True)
class Office:
    token: int = 0
    holder: Owner | None = None
    until: float = -99.0
    records: list[bytes] = field(default_factory=list)


class Store:
    def __init__(self, wrote: Callable[[str, bytes], None], *, flaws: frozenset[str]) -> None:
        self.offices: dict[str, Office] = {}
        self.leases: dict[CaptureId, tuple[int, float]] = {}      # incarnation, until
        self._wrote, self._flaws = wrote, flaws

    def office(self, name: str) -> Office:
        return self.offices.setdefault(name, Office())

    def acquire(self, name: str, who: Owner, now: float, ttl_s: float, gone: Callable[[Owner], bool]) -> int | None:
        office = self.office(name)
        if office.holder not in (None, who) and now < office.until and not gone(office.holder or who):
            return None
        office.token += 1
        office.holder, office.until = who, now + ttl_s
        return office.token

    def renew(self, name: str, token: int, until: float) -> bool:
        office = self.office(name)
        if office.token != token or office.holder is None:
            return False
        office.until = until
        return True

    def release(self, name: str, token: int) -> None:
        office = self.office(name)
        if office.token == token:
            office.holder, office.until = None, -99.0

    def grant(self, name: str, who: Owner, epoch: int) -> bool:
        office = self.office(name)
        if epoch > office.token or (epoch == office.token and office.holder == who) or "token" in self._flaws:
            office.token, office.holder = epoch, who
            return True
        return False

    def append(self, name: str, token: int, index: int, records: Sequence[bytes]) -> bool:
        office = self.office(name)
        if (token != office.token or index != len(office.records)) and "token" not in self._flaws:
            return False
        for record in records:
            self._wrote(name, record)
        office.records.extend(records)
        return True
