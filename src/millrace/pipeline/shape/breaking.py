"""Why a job of the SQL path failed: because of a row that an expression cannot bear, or of something else.

Spark reckons as ANSI SQL does: a division by zero or a text that is no number is an error of the whole job, not a null
that nobody asked for. Which row it was is found by trials (core.feeds.culprits).
"""

from __future__ import annotations

import re

from pyspark import errors

_ROWS = (errors.ArithmeticException, errors.ArrayIndexOutOfBoundsException, errors.DateTimeException,
         errors.IllegalArgumentException, errors.NumberFormatException, errors.SparkRuntimeException)
_SAID = re.compile(r"\[([A-Z0-9_.]+)\]\s*(.*?)\s*(?:SQLSTATE:|$)", re.DOTALL)


def broke(error: Exception) -> str | None:
    """What an expression could not bear, in a line; None: it is not about a row, and trying others tells nothing."""
    if not isinstance(error, _ROWS):
        return None
    found = _SAID.search(str(error))
    said = " ".join(found[2].split()) if found is not None else str(error).strip().split("\n")[0]
    return said.partition(" If necessary set ")[0]           # settings of Spark are not the user's to change here
