"""Removing a broker that is gone for good [L29].

In: the replayed state, which broker, whether it was heard of lately. Out: the record that takes it from the members, or
why not. Promise: a broker that lives, or that a partition still counts as a replica, is never removed; nothing waits
for one that was. If its process comes back it registers as a new member.
"""

from __future__ import annotations

from millrace.core.cluster import ClusterState
from millrace.core.decision import Decision
from millrace.core.election import ordered
from millrace.errors import BrokerInUse, UnknownBroker
from millrace.model.ids import BrokerId
from millrace.model.messages import AdminDone, AdminResult
from millrace.model.records import BrokerRemoved

NAMED_MAX = 10      # partitions that a refusal names


def remove(state: ClusterState, broker: BrokerId, *, is_heard: bool, token: int = 0) -> Decision[AdminDone]:
    known = state.brokers.get(broker)
    if known is None:
        raise UnknownBroker(f"no broker {broker}")
    if not known.fenced or is_heard:
        raise BrokerInUse(f"broker {broker} is alive: stop it before it is removed")
    held = ordered(state.partitions_on(broker))
    if held:
        names = [f"{state.topics[tp.topic_id].name}/{tp.partition}" for tp in held[:NAMED_MAX]]
        more = f" and {len(held) - NAMED_MAX} more" if len(held) > NAMED_MAX else ""
        raise BrokerInUse(f"broker {broker} holds replicas of {len(held)} partitions: {', '.join(names)}{more}")
    record = BrokerRemoved(broker, known.incarnation)
    return Decision((record,), AdminDone(token, state.index + 1, (AdminResult(f"broker {broker}"),)))
