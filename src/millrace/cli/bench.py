"""`millrace bench …`: measurements as commands [L27]."""

from __future__ import annotations

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
