"""`millrace serve broker|capture|spark`: one process, for services, containers and the supervisor."""

from __future__ import annotations

import asyncio
import os

from cyclopts import App

from millrace.cli.layout import OWN_ONLY
from millrace.errors import ConfigError
from millrace.ops import cluster_secret, preflight
from millrace.ops import config as configuration
from millrace.ops import logging as logs
from millrace.ops.processes import die_with_supervisor
from millrace.pipeline import server

app = App(name="serve", help="Run one process in the foreground.")


@app.command
def broker(*, id: int, config: str = "millrace.yaml") -> None:
    """Run one broker until SIGTERM; it hands its leaderships over before it ends.

    Parameters
    ----------
    id
        Number of the broker, from 0; it belongs to the data directory for ever.
    config
        Configuration file; see docs/configuration.md.
    """
    die_with_supervisor()
    os.umask(OWN_ONLY)
    from millrace import node  # the whole log: other commands start faster without it

    if id < 0:
        raise ConfigError(f"--id: {id}: broker ids count from 0")
    settings = configuration.load(config)
    preflight.check_broker(settings, id)
    secret = cluster_secret.load(settings.secret_file)
    path = None if settings.logs_dir == "-" else os.path.join(settings.logs_dir, f"broker-{id}.log")
    logs.configure(settings.logging, path=path)
    asyncio.run(node.serve_broker(settings, id, secret))


@app.command
def capture(*, id: int, config: str = "millrace.yaml") -> None:
    """Run one capture until SIGTERM; its readers go to the others.

    Parameters
    ----------
    id
        Number of the capture, from 0; no two running captures have the same.
    config
        Configuration file; see docs/configuration.md.
    """
    die_with_supervisor()
    os.umask(OWN_ONLY)
    from millrace import node

    if id < 0:
        raise ConfigError(f"--id: {id}: capture ids count from 0")
    settings = configuration.load(config)
    preflight.check_capture(settings)
    secret = cluster_secret.load(settings.secret_file)
    path = None if settings.logs_dir == "-" else os.path.join(settings.logs_dir, f"capture-{id}.log")
    logs.configure(settings.logging, path=path)
    asyncio.run(node.serve_capture(settings, id, secret))


@app.command
def spark(*, config: str = "millrace.yaml") -> None:
    """Run the Spark Connect server of this machine until SIGTERM, on the Java of JAVA_HOME or PATH. Captures use it
    that have its address as spark.remote.

    Parameters
    ----------
    config
        Configuration file; see docs/configuration.md.
    """
    die_with_supervisor()
    settings = configuration.load(config)
    if not settings.spark.port:
        raise ConfigError("spark.port: missing; choose a port for the Spark Connect server")
    preflight.check_port("spark.port", server.HOST, settings.spark.port)
    secret = cluster_secret.load(settings.secret_file)
    server.become(server.plan_of(settings, secret.token(cluster_secret.SPARK)))
