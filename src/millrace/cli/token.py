"""`millrace token`: the token of HTTP, for curl, Prometheus and other clients of the API [A10]."""

from __future__ import annotations

import os

from millrace.cli.exits import DENIED, NOT_FOUND, CommandFailed
from millrace.cli.layout import Layout
from millrace.ops import cluster_secret
from millrace.ops import config as configuration


def token(*, dir: str = ".millrace", config: str | None = None) -> None:
    """Print the token that brokers and captures ask for over HTTP (`Authorization: Bearer TOKEN`). It is made from the
    cluster's secret and stays the same as long as that does; whoever has it may do everything.

    Parameters
    ----------
    dir
        Directory of the cluster, as `millrace up` made it.
    config
        Configuration file of a machine without such a directory.
    """
    path = config if config is not None else Layout(dir).config
    if config is None and not os.access(dir, os.X_OK) and os.path.isdir(dir):
        raise CommandFailed(f"{dir}: only the account that ran `millrace up` may look into it", DENIED)
    if config is None and not os.path.exists(path):
        raise CommandFailed(f"{dir}: no cluster here; start one with: millrace up --dir {dir}", NOT_FOUND)
    print(cluster_secret.load(configuration.load(path).secret_file).token(cluster_secret.HTTP))
