"""What is refused to a peer that has not proved the cluster's secret [A10, L25]."""

from __future__ import annotations

from millrace.errors.base import UserError


class SecretNotProved(UserError):
    """The other side holds another secret, or does not show that it holds one."""

    code = "secret_not_proved"
    http_status = 401
    kafka_code = 58


class TopicNotAuthorized(UserError):
    """An internal topic, named by a client that has not proved the cluster's secret."""

    code = "topic_not_authorized"
    http_status = 403
    kafka_code = 29


class ClusterNotAuthorized(UserError):
    """A private call of a client that has not proved the cluster's secret."""

    code = "cluster_not_authorized"
    http_status = 403
    kafka_code = 31
