"""Who is at the other end of a client's connection, as far as the connection has shown it.

Handlers get the principal beside the request's fields; nothing that a request says of itself counts. Today there are
two: everybody, and our own processes, which have proved the cluster's secret (`proof.py`) [A10]. What TLS or SASL find
out becomes a further principal with a name of its own.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millrace.core.admin import is_internal
from millrace.errors import ClusterNotAuthorized, TopicNotAuthorized


class Principal(NamedTuple):
    name: str
    is_own: bool = False           # one of our own processes: private calls and internal topics are for these


ANYBODY: Final = Principal("anybody")
OWN: Final = Principal("millrace", is_own=True)

NOT_PROVED = "needs the cluster's secret, which this connection has not proved"


def refuse_topic(principal: Principal, name: str) -> None:
    if not principal.is_own and is_internal(name):
        raise TopicNotAuthorized(f"topic {name!r} is millrace's own: it {NOT_PROVED}")


def refused_call(name: str) -> ClusterNotAuthorized:
    return ClusterNotAuthorized(f"{name} {NOT_PROVED}")
