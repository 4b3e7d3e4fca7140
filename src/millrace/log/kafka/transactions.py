"""Transactional producers are refused, in the words that their client has for it [L20].

In: the calls with which a transactional producer begins, FindCoordinator and InitProducerId, and which library sends
them. Out: refusals. Every library stops at UNSUPPORTED_VERSION of FindCoordinator but librdkafka, which asks again
until its time is up and stops there only at refused authorizations. Its own code for a feature that a broker lacks ends
the producer at once, with that text, as an answer to InitProducerId: so librdkafka is given a coordinator, the broker
that it asks, and is refused by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.core.groups.calls import Code
from millrace.errors import UnsupportedVersion
from millrace.log.kafka.shell import LIBRDKAFKA, Shell
from millrace.wire.kafka.codec import Fields

NO_TRANSACTIONS = "transactions are not supported by this broker: use an idempotent producer"
NO_NODE = {"node_id": -1, "host": "", "port": -1}
FEATURE_NOT_SUPPORTED = -165    # RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE: "Required feature not supported by broker"


def is_librdkafka(name: str, version: str) -> bool:
    """By what a client says of itself in ApiVersions: "librdkafka", or a binding of its own name, whose version has
    the library's behind it ("2.16.1-rdkafka-2.16.0")."""
    return "rdkafka" in name or "rdkafka" in version


def coordinator(shell: Shell, fields: Fields) -> Fields:
    """The answer to FindCoordinator of a transactional id."""
    found = _this_broker(shell) if fields[LIBRDKAFKA] else {
        **NO_NODE, "error_code": UnsupportedVersion.kafka_code, "error_message": NO_TRANSACTIONS}
    keys: Sequence[str] = fields.get("coordinator_keys", ())
    return {**found, "coordinators": [{"key": key, **found} for key in keys]}


def _this_broker(shell: Shell) -> Fields:
    this = shell.cluster.brokers.get(shell.id)
    if this is None:                                   # not registered yet: librdkafka asks again
        return {**NO_NODE, "error_code": Code.COORDINATOR_NOT_AVAILABLE, "error_message": NO_TRANSACTIONS}
    endpoint = this.endpoint
    return {"node_id": shell.id, "host": endpoint.host, "port": endpoint.kafka_port, "error_code": 0}


def producer_id(fields: Fields) -> Fields:
    """The answer to InitProducerId with a transactional id."""
    return {"error_code": FEATURE_NOT_SUPPORTED if fields[LIBRDKAFKA] else UnsupportedVersion.kafka_code}
