"""Changefeeds, their sinks and positions, and the Spark data source."""

from __future__ import annotations

from millrace.errors.base import MillraceError, Refused, UserError


class ChangefeedExists(UserError):
    code = "changefeed_exists"
    http_status = 409


class UnknownChangefeed(UserError):
    code = "unknown_changefeed"
    http_status = 404


class UnknownQuarantinedRow(UserError):
    """It never stood there, or was dropped."""

    code = "unknown_quarantined_row"
    http_status = 404


class RowOutdated(UserError):
    """A row of the quarantine whose key was changed since: to write it now would undo that."""

    code = "row_outdated"
    http_status = 409


class QuarantineNotEmpty(UserError):
    """What would be removed has rows in quarantine that nobody has settled."""

    code = "quarantine_not_empty"
    http_status = 409


class PositionRefused(UserError):
    """A changefeed cannot go on from there; the message says from where it can."""

    code = "position_refused"
    http_status = 409


class TopicTaken(UserError):
    """Another changefeed writes to the topic; the message names it, the table and what to do."""

    code = "topic_taken"
    http_status = 409


class SourceInUse(UserError):
    """Changefeeds read it; the message names them."""

    code = "source_in_use"
    http_status = 409


class InvalidExpression(UserError):
    """A filter or projection in SQL; the message shows the expression and where in it the trouble is."""

    code = "invalid_expression"


class InvalidSinkUri(UserError):
    """The message shows the URI and where in it the trouble is."""

    code = "invalid_sink_uri"


class InvalidOption(UserError):
    """An option of the Spark data source; the message names it and what it may be."""

    code = "invalid_option"


class SchemaChanged(UserError):
    """Rows that the schema of this query cannot hold; the message says from where on and how to go on."""

    code = "schema_changed"
    http_status = 409


class TableTruncated(UserError):
    """A truncation stands in the rows that were asked for, and the reader has not said what it makes of it."""

    code = "table_truncated"
    http_status = 409


class CopyNotReadable(UserError):
    """Rows of a copy that cannot be told from those of the changes around it."""

    code = "copy_not_readable"
    http_status = 409


class DataLost(Refused):
    """Changes that were asked for are no longer in the log, or never came there."""

    code = "data_lost"
    retriable = False


class PositionMissing(Refused):
    """No position is stored. Never read as zero: somebody must say where to begin [P3]."""

    code = "position_missing"
    retriable = False
    http_status = 404


class PositionExists(Refused):
    code = "position_exists"
    retriable = False


class Superseded(Refused):
    """The position carries a greater epoch, or was closed: this dispatcher removes itself [C3]."""

    code = "superseded"
    retriable = False


class PositionMoved(Refused):
    """The position is not the `from` of this commit, or its ends are behind those stored: nothing was changed [P3]."""

    code = "position_moved"
    retriable = False


class ClaimRefused(Refused):
    """Another execution has claimed this plan, or a later one: write nothing, return "unknown" [P5]."""

    code = "claim_refused"
    retriable = False


class WriterIdNeeded(Refused):
    """The 16 bits of writer epoch are used up: ask again with a new writer id."""

    code = "writer_id_needed"


class DeliveryError(MillraceError):
    """A sink did not take what it was given. The classes below answer what to do about it [V1, C8]."""

    code = "delivery_failed"


class DeliveryTransient(DeliveryError):
    """May pass: reported for the dispatchers whose rows were in the message, and tried again there [V1]."""

    code = "delivery_transient"
    retriable = True
    http_status = 503


class LogReleased(DeliveryTransient):
    """What a position needs was not in the log. Its maintainer looks whether that is so; then the table needs a copy
    [F10]."""

    code = "log_released"


class RowRefused(DeliveryError):
    """This row and no other: it goes to the quarantine [P9]."""

    code = "row_refused"
    http_status = 422


class ExpressionBroke(DeliveryError):
    """A row of this table broke an expression, as ANSI SQL wants it. Which one it is is looked for before the table's
    next round [P4]."""

    code = "expression_broke"
    retriable = True
    http_status = 422


class TableRefused(DeliveryError):
    """Nothing of this table can be written until somebody acts; the other tables go on."""

    code = "table_refused"
    http_status = 422
