"""The maintainer: one, durable, with one counter of epochs; its commands travel. Captures come and go under it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.core.delivery.takeover_asks import Why
from millrace_sim.takeover.dispatcher import Dispatcher, Span

if TYPE_CHECKING:
    from millrace_sim.takeover.world import World

CAPTURES = (0, 1, 2)


class Maintainer:
    def __init__(self, world: World, *, epoch: int) -> None:
        self.world, self.epoch = world, epoch
        parts = list(world.source)
        groups = [[p] for p in parts] if world.rng.random() < 0.5 else [parts]
        self.spans = [Span(world.fresh(), group) for group in groups]
        self.dispatchers: list[Dispatcher] = []

    def live(self) -> list[Dispatcher]:
        """Those that run, wherever; also such as nobody wants any more."""
        self.dispatchers = [d for d in self.dispatchers if not d.is_gone and d.why is None]
        return [d for d in self.dispatchers if d.created and not d.is_frozen]

    def step(self) -> None:
        span = self.world.rng.choice(self.spans)
        dispatcher = span.dispatcher
        if dispatcher and not dispatcher.created:
            self._create(dispatcher)
        if dispatcher and dispatcher.why is Why.STOPPED:
            self._reshape(span)
        over = dispatcher is None or dispatcher.is_gone or dispatcher.why not in (None, Why.CANNOT_PROVE)
        if over and span in self.spans:
            self.place(span)

    def _create(self, dispatcher: Dispatcher) -> None:
        def arrive() -> None:
            dispatcher.created = dispatcher.created or not dispatcher.is_gone

        self.world.call(arrive)

    def place(self, span: Span) -> None:
        """Under a fresh epoch; who was there before may not know."""
        if span not in self.spans:
            return
        span.epochs += 1
        self.epoch += 1
        epoch = self.epoch if self.world.on("one_counter") else span.epochs
        span.dispatcher = Dispatcher(self.world, span, epoch, self.world.rng.choice(CAPTURES))
        span.after = None
        self.dispatchers.append(span.dispatcher)
        self.world.tell("place", span.parts, "epoch", epoch, "capture", span.dispatcher.capture)
        self._create(span.dispatcher)

    def operate(self, span: Span, after: Span | str | None) -> None:
        """Graceful: the origin ends its round first. Otherwise it is given up, and may go on as a zombie."""
        span.after = after
        if self.world.rng.random() < 0.5 and span.dispatcher:
            span.dispatcher.stop()
        elif after:
            self._reshape(span)
        else:
            self.place(span)

    def _reshape(self, span: Span) -> None:
        rng, other = self.world.rng, span.after
        if other == "split" and len(span.parts) > 1:
            cut = rng.randint(1, len(span.parts) - 1)
            at = self.spans.index(span)
            self.spans[at : at + 1] = [
                Span(self.world.fresh(), parts) for parts in (span.parts[:cut], span.parts[cut:])
            ]
        elif isinstance(other, Span) and other in self.spans and other is not span:
            rest = [s for s in self.spans if s not in (span, other)]
            self.spans = [*rest, Span(self.world.fresh(), span.parts + other.parts)]
