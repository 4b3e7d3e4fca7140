"""The roots: whose fault, try again?, which code."""

from __future__ import annotations

from typing import ClassVar


class MillraceError(Exception):
    code: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500
    kafka_code: ClassVar[int] = -1


class UserError(MillraceError):
    """Where the trouble is in a text, `at` tells the place in it and `why` the trouble, for those who show the text."""

    code = "invalid_request"
    http_status = 400
    kafka_code = 42

    def __init__(self, *said: object, at: int = 0, why: str = "") -> None:
        super().__init__(*said)
        self.at, self.why = at, why


class ConfigError(UserError):
    code = "invalid_configuration"


class ReferenceRefused(ConfigError):
    """A reference to a secret leads where the operator's configuration does not allow."""

    code = "reference_refused"


class InvalidRequest(UserError):
    code = "invalid_request"


class Unauthenticated(UserError):
    """Nothing, or the wrong thing, proves who asks."""

    code = "unauthenticated"
    http_status = 401


class Denied(UserError):
    """Whoever it is, this way is closed: another site's page, a name that is not ours."""

    code = "denied"
    http_status = 403


class WrongMediaType(UserError):
    code = "wrong_media_type"
    http_status = 415


class UnsupportedVersion(UserError):
    code = "unsupported_version"
    kafka_code = 35


class Refused(MillraceError):
    code = "refused"
    retriable = True
    http_status = 409


class Unreachable(MillraceError):
    code = "unreachable"
    retriable = True
    http_status = 503
    kafka_code = 13


class TimedOut(Unreachable):
    code = "timed_out"
    http_status = 504
    kafka_code = 7


class Damaged(MillraceError):
    code = "damaged"
    kafka_code = 56


class OutOfOrder(Damaged):
    """A change came behind a later one of the same key: the log or its reader is wrong."""

    code = "out_of_order"


class Malformed(Damaged):
    """A frame or request that cannot be decoded. The only error a decoder raises."""

    code = "malformed"
    kafka_code = 42
    http_status = 400


class NewerFormat(Damaged):
    """Written by a newer millrace: refused rather than guessed."""

    code = "newer_format"
