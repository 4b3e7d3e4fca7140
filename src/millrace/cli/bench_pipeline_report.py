"""The report of `millrace bench pipeline`: results as values, and the page made from them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from millrace.cli.bench_profile import PLACES, Profile
from millrace.cli.bench_rounds import PROTOTYPE, RoundCost

METHOD = (
    "One embedded PostgreSQL, one table (bigint key, int, numeric(12,2), two texts, timestamptz, jsonb; about 210 "
    "bytes a row on the wire), three brokers with flush=group, Debezium JSON without schemas, acks=all. `through`: all "
    "that takes part is up and warm, the source is shut out while the rows are inserted, 1000 a transaction; the time "
    "is from the moment its slot is taken until the last message can be read. Debezium's is from its first row to the "
    "answer to its last message (Java client, same brokers). `alone`: a second changefeed over the rows that are in "
    "the log by then, from its first message to its last. `client` is everything but PostgreSQL and brokers: captures, "
    "Spark and its workers; for Debezium its process. Each row was then read back and found once. Latency: single "
    "rows, twenty a second, from the answer to the commit to the message in a consumer's hand; Debezium with "
    "linger.ms=0."
)
PROFILE = (
    "Where the time of `alone` goes: CPU by kind of process; then what Spark's Python workers did in a third "
    "changefeed over the same rows, looked at by py-spy a hundred times a second (in no figure above): our own "
    "functions with what they call in libraries, by their share of {samples:,} samples."
)
ROUNDS = (
    "What a round costs without its work: dispatchers that move nothing, in two tasks over Spark Connect; CPU of "
    "Spark, its workers and the process that asks. Beside it the prototype by which the form of rounds was chosen, "
    "which a round must not exceed: measured once, on a machine of the same kind, and kept as constants in the code."
)
COLUMNS = ("case", "who", "rows", "seconds", "rows/s", "MB/s", "client CPU s", "rows per client CPU s",
           "brokers' CPU s", "others' CPU cores")
WANTED_RATE, WANTED_CPU = 2.0, 4.0


@dataclass(frozen=True, slots=True)
class Run:
    case: str
    who: str
    rows: int
    seconds: float
    client_cpu_s: float
    brokers_cpu_s: float
    others_cpu_cores: float
    bytes: int
    cpu_s: dict[str, float]            # by kind of process

    @property
    def rows_per_s(self) -> float:
        return self.rows / max(self.seconds, 0.001)

    @property
    def rows_per_cpu_s(self) -> float:
        return self.rows / max(self.client_cpu_s, 0.01)


@dataclass(frozen=True, slots=True)
class Latency:
    who: str
    rows: int
    p50_ms: float
    p99_ms: float


class Found(NamedTuple):
    runs: list[Run]
    latencies: list[Latency]
    rounds: list[RoundCost]
    profile: Profile


def write(out: str, facts: dict[str, Any], found: Found, *, quick: bool, peer: str | None) -> None:
    os.makedirs(out, exist_ok=True)
    body = {"facts": facts, "quick": quick, "peer": peer, "runs": [asdict(one) for one in found.runs],
            "latencies": [asdict(one) for one in found.latencies], "rounds": [asdict(one) for one in found.rounds],
            "profile": asdict(found.profile)}
    with open(os.path.join(out, "pipeline.json"), "w", encoding="utf-8") as file:
        json.dump(body, file, indent=2)
        file.write("\n")
    with open(os.path.join(out, "pipeline.md"), "w", encoding="utf-8") as file:
        file.write(render(facts, found, quick=quick, peer=peer))


def render(facts: dict[str, Any], found: Found, *, quick: bool, peer: str | None) -> str:
    runs, latencies, rounds, profile = found
    command = "millrace bench pipeline" + (" --quick" if quick else "") + (f" --peer {peer}" if peer else "")
    lines = ["# PostgreSQL to Debezium JSON: rows, CPU, latency", "",
             f"Made by `{command}`; nothing of this run is typed in by hand.", "", METHOD, "",
             *(f"- {key.replace('_', ' ')}: {value}" for key, value in facts.items()), "",
             "| " + " | ".join(COLUMNS) + " |", "|---|---|" + "---:|" * (len(COLUMNS) - 2), *map(_row, runs), "",
             "| who | rows | latency p50 | p99 |", "|---|---:|---:|---:|",
             *(f"| {one.who} | {one.rows} | {one.p50_ms:.0f} ms | {one.p99_ms:.0f} ms |" for one in latencies), "",
             *_profile(runs, profile), ROUNDS, "", "| dispatchers | p50 | p90 | CPU | prototype's p50 | CPU | |",
             "|---:|---:|---:|---:|---:|---:|---|", *map(_round, rounds), ""]
    goals = _goals(runs, latencies)
    if goals:
        lines += ["| goal | figure | wanted | |", "|---|---:|---:|---|", *goals, ""]
    return "\n".join(lines)


def _row(run: Run) -> str:
    cells = [run.case, run.who, f"{run.rows:,}", f"{run.seconds:.1f}", f"{run.rows_per_s:,.0f}",
             f"{run.bytes / max(run.seconds, 0.001) / 1e6:.1f}", f"{run.client_cpu_s:.1f}",
             f"{run.rows_per_cpu_s:,.0f}", f"{run.brokers_cpu_s:.1f}", f"{run.others_cpu_cores:.2f}"]
    return "| " + " | ".join(cells) + " |"


def _profile(runs: list[Run], profile: Profile) -> list[str]:
    alone = next(run for run in runs if run.case == "alone")
    lines = [PROFILE.format(samples=profile.samples), "", "| process | CPU s | of all |", "|---|---:|---:|"]
    total = max(sum(alone.cpu_s.values()), 0.01)
    lines += [f"| {kind} | {used:.1f} | {used / total:.0%} |" for kind, used in alone.cpu_s.items()]
    if profile.trouble:
        return [*lines, "", f"Workers were not looked at: {profile.trouble}.", ""]
    shown, rest = profile.places[:PLACES], profile.places[PLACES:]
    lines += ["", "| function of the workers | share |", "|---|---:|", *(f"| `{place}` | {share:.1%} |"
              for place, share in shown)]
    return [*lines, f"| {len(rest)} others | {sum(share for _, share in rest):.1%} |", ""]


def _round(one: RoundCost) -> str:
    before = " | ".join(f"{figure:.0f} ms" for figure in PROTOTYPE[one.dispatchers])
    return (f"| {one.dispatchers:,} | {one.p50_ms:.0f} ms | {one.p90_ms:.0f} ms | {one.cpu_ms:.0f} ms | {before} | "
            f"{_met(one.is_met)} |")


def _goals(runs: list[Run], latencies: list[Latency]) -> list[str]:
    through = {run.who: run for run in runs if run.case == "through"}
    waits = {one.who: one for one in latencies}
    lines = []
    if {"millrace", "Debezium"} <= through.keys():
        ours, theirs = through["millrace"], through["Debezium"]
        for words, figure, wanted in (("rows/s", ours.rows_per_s / theirs.rows_per_s, WANTED_RATE),
                                      ("rows per client CPU-second", ours.rows_per_cpu_s / theirs.rows_per_cpu_s,
                                       WANTED_CPU)):
            lines.append(f"| {words} against Debezium | {figure:.2f} x | {wanted:g} x | {_met(figure >= wanted)} |")
    if {"millrace", "Debezium"} <= waits.keys():
        mine, other = waits["millrace"].p50_ms, waits["Debezium"].p50_ms
        lines.append(f"| median latency | {mine:.0f} ms | {other:.0f} ms | {_met(mine <= other)} |")
    return lines


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"
