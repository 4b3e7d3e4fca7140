"""The class archive (AppCDS) of Spark: classes parsed once, mapped at each start; half the CPU of a start.

In: a Java and a class path. Out: a file in the user's cache directory named after both, so another Java or Spark finds
none and has its own made (`archive_maker.py`). Promise: never required: without it, or with a broken one, Spark just
starts slower.
"""

from __future__ import annotations

import os

from millrace.pipeline.jvm import Java, fingerprint

QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")      # hundreds of harmless lines about signed jars


def directory() -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "millrace")


def path_of(java: Java, jars: str) -> str:
    return os.path.join(directory(), f"spark-{fingerprint(java, jars)}.jsa")


def find(java: Java, jars: str) -> str:
    """The file, or nothing. It is touched: the least used are removed first."""
    path = path_of(java, jars)
    try:
        os.utime(path)
    except OSError:
        return ""
    return path
