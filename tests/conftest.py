"""Shared by all tests: Hypothesis profiles, and where tests keep their files."""

from __future__ import annotations

import os
import tempfile

from hypothesis import HealthCheck, settings

# Deadlines are off because the machine is shared; sizes are bounded.
settings.register_profile("ci", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

MEMORY = "/dev/shm"
MEMORY_FREE_MIN = 8 << 30   # a run of everything takes up to 2 GiB of it


def _is_fit(directory: str) -> bool:
    """Room enough, and programs may be run from there (Spark's libraries, PostgreSQL out of a wheel)."""
    try:
        stat = os.statvfs(directory)
    except OSError:
        return False
    return stat.f_bavail * stat.f_frsize >= MEMORY_FREE_MIN and not stat.f_flag & os.ST_NOEXEC


def _test_dir() -> str | None:
    """In memory where there is room: a rented disk may stand still for ten seconds after a large write, longer than
    the sessions that tests shorten. What survives kill -9 is the same in both; MILLRACE_TEST_DIR=/tmp takes a disk."""
    chosen = os.environ.get("MILLRACE_TEST_DIR")
    return chosen if chosen is not None else MEMORY if _is_fit(MEMORY) else None


if (_chosen := _test_dir()) is not None:
    os.environ["TMPDIR"] = tempfile.tempdir = _chosen
