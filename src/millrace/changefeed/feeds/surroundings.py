"""What every host on one capture stands on: store, links, data path, and who lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from millrace import limits
from millrace.changefeed.feeds.ports import Dispatching, Homes
from millrace.changefeed.members import CaptureInfo
from millrace.core.feeds.effects import Send
from millrace.model.ids import ProcessIdentity
from millrace.model.spans import CaptureId
from millrace.ops.ports import Ports
from millrace.store.contract import Candidate, Store


class Living:
    """Who has a lease and answers links, and whose process provably no longer exists [L17]."""

    def __init__(self) -> None:
        self.captures: dict[CaptureId, int] = {}                          # with incarnation
        self.gone: set[tuple[CaptureId, int]] = set()
        self._processes: dict[tuple[CaptureId, int], ProcessIdentity] = {}

    def read(self, infos: list[CaptureInfo]) -> None:
        here = [info for info in infos if info.link and (info.id, info.incarnation) not in self.gone]
        self.captures = {info.id: info.incarnation for info in here}
        for info in here:
            if info.process is not None:
                self._processes[info.id, info.incarnation] = info.process

    def look(self, ports: Ports) -> None:
        for who, process in list(self._processes.items()):
            if ports.processes.is_gone(process):
                del self._processes[who]
                self.gone.add(who)
                if self.captures.get(who[0]) == who[1]:
                    del self.captures[who[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    me: Candidate
    incarnation: int
    session_s: float
    ports: Ports
    store: Store
    homes: Homes
    dispatching: Dispatching
    send: Callable[[Send], None]
    living: Living = field(default_factory=Living)
    heartbeat_s: float = limits.FEED_HEARTBEAT_S

    @property
    def capture(self) -> CaptureId:
        return self.me.member

    def now(self) -> float:
        return self.ports.clock.now()
