"""`millrace bench …`: measurements as commands [L27]."""

from __future__ import annotations

import os
from typing import Literal

from cyclopts import App

from millrace.cli import bench_log

app = App(name="bench", help="Measure this machine and this version.")


@app.command
def log(*, quick: bool = False, out: str = "docs/benchmarks", seconds: float = 8.0) -> None:
    """Throughput, acknowledgement latency and CPU of the log beside the disk's own speed; writes log.md and log.json.

    Parameters
    ----------
    quick
        Two short cases instead of eight.
    out
        Directory of the report.
    seconds
        Length of each throughput measurement.
    """
    bench_log.run(quick=quick, out=out, seconds=seconds)


@app.command
def source(*, peer: Literal["debezium"] | None = None, quick: bool = False, rows: int | None = None,
           only: Literal["rows", "single", "copy"] | None = None, out: str = "docs/benchmarks",
           peer_dir: str = "~/.cache/millrace/peers") -> None:
    """PostgreSQL into the log beside pg_recvlogical, single-row transactions, copies; writes source.md and source.json.

    Parameters
    ----------
    peer
        Also measure this peer on the same rows; debezium is installed by name into --peer-dir and needs a JDK.
    quick
        A twentieth of the rows: whether it works, not how fast it is.
    rows
        How many rows instead; single-row transactions are a fifth of them.
    only
        One case of the three: changes in large transactions, in single-row ones, or the copy of a table. The report is
        called after it.
    out
        Directory of the report.
    peer_dir
        Where the peer's package is kept between runs.
    """
    from millrace.cli import bench_source  # PostgreSQL, Arrow: other commands start faster without them

    bench_source.run(quick=quick, out=out, peer=peer, peer_dir=os.path.expanduser(peer_dir), rows=rows,
                     only=only)


@app.command
def pipeline(*, peer: Literal["debezium"] | None = None, quick: bool = False, rows: int | None = None,
             partitions: int = 1, out: str = "docs/benchmarks", peer_dir: str = "~/.cache/millrace/peers") -> None:
    """PostgreSQL to Debezium JSON that a consumer can see: rows, CPU, latency; writes pipeline.md and pipeline.json.

    Parameters
    ----------
    peer
        Also measure this peer on the same rows and brokers; debezium is installed by name into --peer-dir and needs a
        JDK.
    quick
        A fiftieth of the rows: whether it works, not how fast it is.
    rows
        How many rows instead.
    partitions
        Partitions of the table in the change log, and of the topics.
    out
        Directory of the report.
    peer_dir
        Where the peer's package is kept between runs.
    """
    from millrace.cli import bench_pipeline  # PostgreSQL, Arrow: other commands start faster without them

    bench_pipeline.run(quick=quick, out=out, peer=peer, peer_dir=os.path.expanduser(peer_dir), rows=rows,
                       partitions=partitions)
