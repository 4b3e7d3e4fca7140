"""Who may decide and write: offices, incarnations, the store."""

from __future__ import annotations

from millrace.errors.base import Refused, Unreachable


class NotController(Refused):
    code = "not_controller"
    http_status = 421
    kafka_code = 41


class NotCoordinator(Refused):
    code = "not_coordinator"
    http_status = 421


class StaleIncarnation(Refused):
    """Another start of the same broker is registered: this process must end."""

    code = "stale_incarnation"
    retriable = False
    kafka_code = 77


class StaleToken(Refused):
    code = "stale_token"
    retriable = False


class Deposed(Refused):
    """The office is no longer ours: another holder, or a higher token."""

    code = "deposed"
    retriable = False


class OfficeHeld(Refused):
    code = "office_held"


class MemberHeld(Refused):
    """Another process lives as this member: two of one number would do each other's work."""

    code = "member_held"
    retriable = False


class IndexConflict(Refused):
    """The history moved on: read it again before deciding."""

    code = "index_conflict"


class IndexCompacted(Refused):
    """The records asked for are only in the snapshot now: load it, then read after its index."""

    code = "index_compacted"


class StoreUnreachable(Unreachable):
    code = "store_unreachable"
