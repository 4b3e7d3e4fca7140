"""How commands end: exit codes [A2], and the one line that says why."""

from __future__ import annotations

from millrace.errors import MillraceError, TimedOut, Unreachable, UserError

OK, FAILED, USAGE, NOT_FOUND, CONFLICT, DENIED, UNREACHABLE, TIMED_OUT, UNHEALTHY = 0, 1, 2, 3, 4, 5, 6, 7, 10

MEANING = {
    OK: "done",
    FAILED: "failed",
    USAGE: "wrong use: an argument, a configuration key, a port or directory; nothing was changed",
    NOT_FOUND: "what was named does not exist",
    CONFLICT: "it exists already, or is already running",
    DENIED: "not allowed",
    UNREACHABLE: "nothing answers",
    TIMED_OUT: "no answer in time; it may still happen",
    UNHEALTHY: "it answers, and is not well",
}

BY_HTTP_STATUS = {400: USAGE, 401: DENIED, 403: DENIED, 404: NOT_FOUND, 409: CONFLICT, 415: USAGE, 503: UNREACHABLE,
                  504: TIMED_OUT}


class CommandFailed(Exception):
    """Ends the command with `code` after one line on standard error."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: BaseException) -> int:
    """The exit code of an error that reached the top of a command."""
    if isinstance(error, CommandFailed):
        return error.code
    if isinstance(error, TimedOut):
        return TIMED_OUT
    if isinstance(error, Unreachable):
        return UNREACHABLE
    if isinstance(error, UserError):
        return BY_HTTP_STATUS.get(error.http_status, USAGE)
    if isinstance(error, MillraceError):
        return BY_HTTP_STATUS.get(error.http_status, FAILED)
    return FAILED
