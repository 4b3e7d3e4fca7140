"""Databases and their sources."""

from __future__ import annotations

from millrace.errors.base import Refused, Unreachable, UserError


class SourceExists(UserError):
    code = "source_exists"
    http_status = 409


class UnknownSource(UserError):
    code = "unknown_source"
    http_status = 404


class UnknownTable(UserError):
    code = "unknown_table"
    http_status = 404


class InvalidTableRule(UserError):
    """The message shows the rule and where in it the trouble is."""

    code = "invalid_table_rule"


class SourceError(UserError):
    """The database of a source said no for a reason that somebody must remove; the message says how."""

    code = "source_refused"
    http_status = 422


class SourceAuthFailed(SourceError):
    """Wrong user, password, database or certificate."""

    code = "source_auth_failed"


class SourceNotPermitted(SourceError):
    """The role may not do this; the message holds the SQL for somebody who may."""

    code = "source_not_permitted"


class SourceNotSuited(SourceError):
    """The server or a table is not set up for logical replication (version, wal_level, keys); see `doctor`."""

    code = "source_not_suited"


class PublicationMissing(SourceError):
    """Our publication is gone: streaming on would lose rows silently."""

    code = "publication_missing"


class SlotMissing(SourceError):
    code = "slot_missing"


class SlotLost(SourceError):
    """The server has thrown away WAL that the slot still needed: what was in it comes only by copies [S9]."""

    code = "slot_lost"


class CopyUnderWay(Refused):
    """The table's initial copy is not complete yet."""

    code = "copy_under_way"


class SlotActive(Refused):
    """Another connection streams from the slot."""

    code = "slot_active"


class SourceUnreachable(Unreachable):
    """The database of a source did not answer, or broke the connection."""

    code = "source_unreachable"


class SourceNotReady(SourceUnreachable):
    """It answered, but not yet or not now: starting, stopping, in recovery, out of connections or slots."""

    code = "source_not_ready"
