"""The report of `millrace bench source`: results as values, and the page made from them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

METHOD = (
    "One embedded PostgreSQL, one table (bigint key, int, numeric(12,2), two texts, timestamptz, jsonb; about 210 "
    "bytes a row on the wire). Slots and sources stand before the load; then each reader reads the same WAL over "
    "TCP, alone, from a process started for it. `rows`: inserts, 1000 a transaction. `single`: a mix of inserts, "
    "updates and deletes, one a transaction. millrace counts from the moment its slot is taken until a resolved "
    "mark that covers the load can be read from the log; what it has by then is replicated and, with flush=group, "
    "synced on every broker. Its CPU is that of the capture process from that moment on; Debezium's counts from its"
    " first row. Debezium's rows are dropped as JSON, or in a second run sent to the three brokers. `client` is the"
    " reading process; brokers and walsender stand beside it. A copy counts from its plan to its last manifest, the"
    " start of the copying processes included."
)
COLUMNS = ("case", "reader", "rows", "seconds", "rows/s", "of pg_recvlogical", "client CPU s", "rows per client CPU s",
           "walsender CPU s", "brokers' CPU s", "others' CPU cores")
OTHERS_CPU_CORES_MAX = 0.2
# What was aimed at: (case, text, ours, theirs, by, factor).
THREE, ONE = "millrace, 3 brokers, flush=group", "millrace, 1 broker, flush=os"
RECV, DEBEZIUM = "pg_recvlogical to /dev/null", "Debezium 3.6.3, JSON dropped"
GOALS = (
    ("rows", THREE, RECV, "rows_per_s", 0.7), ("rows", ONE, RECV, "rows_per_s", 0.9),
    ("rows", THREE, DEBEZIUM, "rows_per_s", 3.0), ("rows", THREE, DEBEZIUM, "rows_per_cpu_s", 6.0),
    ("single", THREE, DEBEZIUM, "rows_per_s", 2.0),
)
COPY_GOAL = 1_000_000


@dataclass(frozen=True, slots=True)
class Run:
    case: str
    reader: str
    rows: int
    seconds: float
    client_cpu_s: float
    walsender_cpu_s: float
    brokers_cpu_s: float
    others_cpu_cores: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    @property
    def rows_per_cpu_s(self) -> float:
        return self.rows / max(self.client_cpu_s, 0.01)


@dataclass(frozen=True, slots=True)
class Copied:
    rows: int
    seconds: float
    client_cpu_s: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    @property
    def rows_per_cpu_s(self) -> float:
        return self.rows / max(self.client_cpu_s, 0.01)


def write(out: str, facts: dict[str, Any], runs: list[Run], copied: Copied | None, *, quick: bool, peer: str | None,
          only: str | None) -> str:
    """The name of both files."""
    os.makedirs(out, exist_ok=True)
    name = f"source-{only}" if only else "source"
    body = {"facts": facts, "quick": quick, "peer": peer, "runs": [asdict(run) for run in runs],
            "copy": asdict(copied) if copied is not None else None}
    with open(os.path.join(out, f"{name}.json"), "w", encoding="utf-8") as file:
        json.dump(body, file, indent=2)
        file.write("\n")
    with open(os.path.join(out, f"{name}.md"), "w", encoding="utf-8") as file:
        file.write(render(facts, runs, copied, quick=quick, peer=peer, only=only))
    return name


def render(facts: dict[str, Any], runs: list[Run], copied: Copied | None, *, quick: bool, peer: str | None,
           only: str | None) -> str:
    command = ("millrace bench source" + (" --quick" if quick else "") + (f" --peer {peer}" if peer else "")
               + (f" --only {only}" if only else ""))
    lines = ["# PostgreSQL into the log: rows and CPU", "",
             f"Made by `{command}`; nothing here is typed in by hand.", "", METHOD, "",
             *(f"- {key.replace('_', ' ')}: {value}" for key, value in facts.items()), ""]
    if runs:
        lines += ["| " + " | ".join(COLUMNS) + " |", "|---|---|" + "---:|" * (len(COLUMNS) - 2),
                  *(_row(run, runs) for run in runs), ""]
    if copied is not None:
        copy = (f"Copy of {copied.rows:,} rows to three brokers: {copied.rows_per_s:,.0f} rows/s, "
                f"{copied.rows_per_cpu_s:,.0f} rows per client CPU-second (capture and its copying processes).")
        lines += [copy, ""]
    lines += ["| goal | figure | wanted | |", "|---|---:|---:|---|", *_goals(runs)]
    if copied is not None:
        lines.append(f"| copy: rows per client CPU-second | {copied.rows_per_cpu_s:,.0f} | {COPY_GOAL:,} | "
                     f"{_met(copied.rows_per_cpu_s >= COPY_GOAL)} |")
    disturbed = [run for run in runs if run.others_cpu_cores > OTHERS_CPU_CORES_MAX]
    if disturbed:
        why = (f"**{len(disturbed)} of {len(runs)} runs were disturbed**: other processes took more than "
               f"{OTHERS_CPU_CORES_MAX} cores meanwhile. Run it again on a quiet machine.")
        lines += ["", why]
    return "\n".join([*lines, ""])


def _goals(runs: list[Run]) -> list[str]:
    lines = []
    for case, ours, theirs, figure, wanted in GOALS:
        mine, other = _mean(runs, case, ours, figure), _mean(runs, case, theirs, figure)
        if mine and other:
            words = "rows/s" if figure == "rows_per_s" else "rows per client CPU-second"
            lines.append(f"| {case}: {words} of {ours} against {theirs} | {mine / other:.2f} x | {wanted:g} x | "
                         f"{_met(mine / other >= wanted)} |")
    return lines


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def _mean(runs: list[Run], case: str, reader: str, figure: str) -> float:
    found = [float(getattr(run, figure)) for run in runs if run.case == case and run.reader == reader]
    return sum(found) / len(found) if found else 0.0


def _row(run: Run, runs: list[Run]) -> str:
    floor = _mean(runs, run.case, RECV, "rows_per_s")
    share = "" if run.reader == RECV or not floor else f"{run.rows_per_s / floor:.2f} x"
    brokers = f"{run.brokers_cpu_s:.1f}" if run.brokers_cpu_s else ""
    cells = [run.case, run.reader, f"{run.rows:,}", f"{run.seconds:.1f}", f"{run.rows_per_s:,.0f}", share,
             f"{run.client_cpu_s:.1f}", f"{run.rows_per_cpu_s:,.0f}", f"{run.walsender_cpu_s:.1f}", brokers,
             f"{run.others_cpu_cores:.2f}"]
    return "| " + " | ".join(cells) + " |"
