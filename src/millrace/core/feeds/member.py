"""A capture as member: what it obeys, what it answers, when it ends itself [C2, C9, D6].

In: the coordinator's pings and commands, time. Out: answers, maintainers to start and to end, the sentence on itself.
Promises: a former coordinator's command changes nothing; a command for another incarnation neither; a maintainer that
was ended does not come back under the same epoch; a capture that is not alive takes no maintainer; a capture that the
present coordinator has not heard for three sessions ends its work and starts as a new incarnation.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace import limits
from millrace.core.feeds.captures import NO_FLAWS
from millrace.core.feeds.effects import DropMaintainer, FeedEffect, Send, StartMaintainer
from millrace.model.feed_messages import (
    CaptureAnswer,
    CoordinatorPing,
    EndMaintainer,
    Liveness,
    MaintainerRefused,
    MaintainerReport,
    PlaceMaintainer,
    View,
)
from millrace.model.spans import CaptureId

FLAWS = {
    "old_token": "commands of a former coordinator are obeyed [C1]",
    "put_out": "a capture that the coordinator cannot hear goes on for ever [C9]",
}

_ANSWERED_MAX = 64            # answers remembered: a coordinator acknowledges within a heartbeat or two


class Member:
    def __init__(
        self, capture: CaptureId, incarnation: int, now: float, *, session_s: float, flaws: frozenset[str] = NO_FLAWS
    ) -> None:
        self.capture, self.incarnation, self.session_s, self._flaws = capture, incarnation, session_s, flaws
        self.liveness: Liveness = "alive"
        self.token = 0                                  # the greatest one seen
        self.view: View | None = None
        self.maintainers: dict[str, int] = {}           # changefeed -> epoch
        self._ended: dict[str, int] = {}
        self._heard_at = now                            # when we gave the last answer that is known to have arrived
        self._answered: dict[float, float] = {}         # send time of a ping, by its sender's clock -> our time

    # -- the coordinator's word ------------------------------------------------------------------------------------
    def on_ping(
        self, now: float, source: CaptureId, ping: CoordinatorPing, *,
        maintainers: Iterable[MaintainerReport], dispatchers: int, feeds: Iterable[str],
    ) -> list[FeedEffect]:
        if not self._obeys(ping.token):
            return []
        self._note(now, ping)
        if ping.view is not None and (self.view is None or ping.view.version > self.view.version):
            self.view = ping.view
        seen = self.view.version if self.view is not None else (0, 0)
        return [Send(source, CaptureAnswer(
            ping.token, self.capture, self.incarnation, ping.sent_at, seen, self.liveness,
            tuple(maintainers), dispatchers, tuple(feeds)))]

    def on_place(self, source: CaptureId, command: PlaceMaintainer) -> list[FeedEffect]:
        if not self._obeys(command.token) or command.incarnation != self.incarnation:
            return []
        feed, epoch = command.feed, command.epoch
        if epoch <= self._ended.get(feed, 0) or epoch <= self.maintainers.get(feed, 0):
            return []
        if self.liveness != "alive":
            reason = f"capture {self.capture} is {self.liveness}"
            return [Send(source, MaintainerRefused(command.token, feed, epoch, reason))]
        before = self.maintainers.pop(feed, None)
        self.maintainers[feed] = epoch
        start = StartMaintainer(feed, epoch)
        return [start] if before is None else [DropMaintainer(feed), start]

    def on_end(self, command: EndMaintainer) -> list[FeedEffect]:
        if not self._obeys(command.token) or command.incarnation != self.incarnation:
            return []
        self._ended[command.feed] = max(self._ended.get(command.feed, 0), command.epoch)
        present = self.maintainers.get(command.feed)
        if present is None or present > command.epoch:
            return []
        del self.maintainers[command.feed]
        return [DropMaintainer(command.feed)]

    def maintainer_ended(self, feed: str, epoch: int) -> None:
        """By itself: replaced, or never granted its office."""
        if self.maintainers.get(feed) == epoch:
            del self.maintainers[feed]

    def took_office(self, token: int) -> None:
        """Our own token counts as seen: late commands of earlier coordinators no longer count here."""
        self.token = max(self.token, token)

    def _obeys(self, token: int) -> bool:
        if token < self.token:
            return "old_token" in self._flaws
        self.token = token
        return True

    # -- being heard -----------------------------------------------------------------------------------------------
    def _note(self, now: float, ping: CoordinatorPing) -> None:
        self._answered[ping.sent_at] = now
        while len(self._answered) > _ANSWERED_MAX:
            del self._answered[next(iter(self._answered))]
        if ping.heard_at is not None:
            self._heard_at = max(self._heard_at, self._answered.get(ping.heard_at, 0.0))

    def coordinator_is_us(self, now: float) -> None:
        self._heard_at = now

    def is_put_out(self, now: float, *, office_held: bool) -> bool:
        """`office_held`: there is a coordinator, by the store. Without one nobody could hear us."""
        if not office_held:
            self._heard_at = max(self._heard_at, now - self.session_s)
            return False
        return now - self._heard_at > limits.PUT_OUT_SESSIONS * self.session_s and "put_out" not in self._flaws
