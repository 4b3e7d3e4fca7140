"""Stories: three replicas moved step by step by commands in a text file, each with what must come of it.

    assign leader=1 epoch=2 pe=3 isr=1,2 [to=1,2,3] [min=2]   the controller's record reaches these brokers
    write 1 3            the leader writes 3 batches, not yet durable
    sync 1               what broker 1 wrote is durable now
    fetch 2 [hold]       broker 2 fetches and takes the answer, or it is held up
    deliver              the held answers arrive, in order
    tick 1 30            time on the leader
    answer 1 ineligible  the controller refused broker 1's last proposal
    restart 2 [lose=1] [incarnation=21]   a new process on the same disk, without its unsynced tail
    fence 2 / unfence 2  as every broker's metadata says
    state                all replicas: role, epochs of the log, HW, LEO
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millrace.core.epochs import EpochCache
from millrace.core.replication import (
    AdvanceLogStart,
    Assignment,
    Diverged,
    Effects,
    Fence,
    OutOfRange,
    ProposeIsr,
    Replica,
    Restart,
    Serve,
    Truncate,
)

BROKERS = (1, 2, 3)


@dataclass
class Broker:
    incarnation: int
    fenced: bool = False
    draining: bool = False


class Copy:
    """A replica and its log: the epoch of each batch."""

    def __init__(self, me: int, brokers: dict[int, Broker], log: list[int], hw: int) -> None:
        self.log = log
        self.epochs = EpochCache([(epoch, offset) for offset, epoch in enumerate(log)])
        self.replica = Replica(me, epochs=self.epochs, brokers=brokers, log_end=len(log), hw=hw)
        self.proposal: ProposeIsr | None = None

    def append(self, epochs: list[int]) -> None:
        for epoch in epochs:
            self.epochs.appended(epoch, len(self.log))
            self.log.append(epoch)


class Story:
    def __init__(self) -> None:
        self.now = 0.0
        self.brokers = {b: Broker(b * 10) for b in BROKERS}
        self.copies = {b: Copy(b, self.brokers, [], 0) for b in BROKERS}
        self.said: list[str] = []
        self.held: list[Callable[[], None]] = []

    def run(self, line: str) -> list[str]:
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        self.said = []
        getattr(self, f"do_{name}")(*plain, **options)
        return self.said or ["nothing"]

    def say(self, broker: int, what: object) -> None:
        self.said.append(f"{broker}: {what}")

    def take(self, broker: int, effects: Effects) -> None:
        copy = self.copies[broker]
        for effect in effects:
            self.say(broker, effect)
            if isinstance(effect, ProposeIsr):
                copy.proposal = effect
            elif isinstance(effect, Truncate):
                del copy.log[effect.to :]
                copy.epochs.truncated(effect.to)
                copy.replica.truncated(effect.to)
            elif isinstance(effect, Restart | AdvanceLogStart):
                raise NotImplementedError(effect)

    def do_assign(
        self, *, leader: str, epoch: str, pe: str, isr: str, to: str = "1,2,3", min: str = "2"  # noqa: A002
    ) -> None:
        members = frozenset(int(b) for b in isr.split(","))
        a = Assignment(int(leader), int(epoch), int(pe), members, BROKERS, int(min))
        for broker in map(int, to.split(",")):
            self.take(broker, self.copies[broker].replica.assigned(self.now, a))

    def do_write(self, broker: str, count: str) -> None:
        copy = self.copies[int(broker)]
        refused = copy.replica.refuse_write(acks=-1, lease_valid=True)
        if refused is not None:
            self.say(int(broker), f"refused: {refused.code}")
            return
        copy.append([copy.replica.leader_epoch] * int(count))
        self.take(int(broker), copy.replica.appended(self.now, len(copy.log)))

    def do_sync(self, broker: str) -> None:
        copy = self.copies[int(broker)]
        self.take(int(broker), copy.replica.durable(self.now, len(copy.log)))

    def do_fetch(self, broker: str, hold: str = "") -> None:
        me = int(broker)
        copy, leader = self.copies[me], self.copies[me].replica.leader
        offset, last_epoch = copy.replica.fetch_position()
        epoch, master = copy.replica.leader_epoch, self.copies[leader]
        answer = master.replica.follower_fetched(
            self.now, follower=me, incarnation=self.brokers[me].incarnation, epoch=epoch, offset=offset,
            last_epoch=last_epoch,
        )
        self.say(leader, f"{type(answer).__name__}{tuple(answer)[:-1]}")
        self.take(leader, answer.effects)
        epochs = list(master.log[offset:]) if isinstance(answer, Serve) else []

        def arrives() -> None:
            self._take_answer(me, epoch, answer, epochs)

        if hold:
            self.held.append(arrives)
        else:
            arrives()

    def _take_answer(
        self, me: int, epoch: int, answer: Serve | Diverged | Fence | OutOfRange, epochs: list[int]
    ) -> None:
        copy = self.copies[me]
        if isinstance(answer, Diverged):
            self.take(me, copy.replica.diverged(epoch=epoch, at_epoch=answer.epoch, end=answer.end))
        elif isinstance(answer, Serve):
            if epochs and copy.replica.data_arrived(epoch=epoch, base=answer.offset):
                copy.append(epochs)
                copy.replica.replicated(len(copy.log))
                self.say(me, f"has {len(copy.log)}")
            self.take(me, copy.replica.leader_hw(epoch=epoch, hw=answer.hw, log_start=0))

    def do_deliver(self) -> None:
        held, self.held = self.held, []
        for arrives in held:
            arrives()

    def do_tick(self, broker: str, seconds: str) -> None:
        self.now += float(seconds)
        self.take(int(broker), self.copies[int(broker)].replica.tick(self.now))

    def do_answer(self, broker: str, error: str) -> None:
        copy = self.copies[int(broker)]
        assert copy.proposal is not None
        _, partition_epoch, *_ = copy.proposal
        copy.replica.isr_answer(
            leader_epoch=copy.proposal.leader_epoch, partition_epoch=partition_epoch, error=error
        )

    def do_restart(self, broker: str, *, lose: str = "0", incarnation: str = "") -> None:
        me = int(broker)
        old = self.copies[me]
        keep = max(old.replica.leo, len(old.log) - int(lose))
        self.brokers[me] = Broker(int(incarnation) if incarnation else self.brokers[me].incarnation + 1)
        self.copies[me] = Copy(me, self.brokers, old.log[:keep], old.replica.hw)

    def do_fence(self, broker: str) -> None:
        self.brokers[int(broker)].fenced = True

    def do_unfence(self, broker: str) -> None:
        self.brokers[int(broker)].fenced = False

    def do_state(self) -> None:
        for broker, copy in self.copies.items():
            r = copy.replica
            role = "leader" if r.is_leader else f"follows {r.leader}"
            self.say(broker, f"{role:<10} epoch {r.leader_epoch}  log {copy.log}  hw {r.hw} leo {r.leo}")


def tell(text: str) -> str:
    """The file again, with what really came of each command."""
    story, out = Story(), []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        out.append(line)
        if line and not line.startswith("#"):
            out += [f"  {said}" for said in story.run(line)]
    return "\n".join(out) + "\n"
