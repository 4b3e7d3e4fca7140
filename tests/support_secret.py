"""The secret of clusters that tests start, and the keys made from it: one for all, so that any client finds the door
open. `millrace up` makes its own; `secret_of(directory)` reads that one."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from millrace.ops import cluster_secret
from millrace.ops.cluster_secret import KAFKA, LINK, ClusterSecret

TEXT = "a secret that only the tests of this repository know"
SECRET = ClusterSecret(TEXT)
LINK_KEY = SECRET.proof_key(LINK)
LOG_KEY = SECRET.proof_key(KAFKA)      # of our own clients of the log


def write_secret(path: Path) -> str:
    """As `cluster.secret_file` wants it; the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT + "\n")
    os.chmod(path, 0o600)
    return str(path)


@cache
def secret_file() -> str:
    """A file with the tests' secret, for those who are given a path."""
    directory = tempfile.mkdtemp(prefix="millrace-test-secret-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return write_secret(Path(directory) / "secret")


def secret_of(directory: Path | str) -> ClusterSecret:
    """Of a cluster that `millrace up` has started there."""
    return cluster_secret.load(str(Path(directory) / "secret"))
