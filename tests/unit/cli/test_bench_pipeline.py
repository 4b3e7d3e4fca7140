"""The report of `bench pipeline` is made from measurements."""

from __future__ import annotations

import json
from pathlib import Path

from millrace.cli.bench_pipeline_report import Found, Latency, Run, write
from millrace.cli.bench_profile import Profile
from millrace.cli.bench_rounds import RoundCost


def test_the_report_holds_what_was_measured_and_judges_it(tmp_path: Path) -> None:
    runs = [Run("through", "millrace", 1000, 2.0, 0.5, 0.1, 0.0, 400_000, {}),
            Run("alone", "millrace", 1000, 1.0, 0.5, 0.1, 0.0, 1, {"capture": 1.0, "brokers": 3.0}),
            Run("through", "Debezium", 1000, 3.0, 4.0, 0.1, 0.0, 400_000, {})]
    latencies = [Latency("millrace", 9, 30.0, 50.0), Latency("Debezium", 9, 31.0, 60.0)]
    rounds = [RoundCost(10, 60.0, 80.0, 70.0), RoundCost(1_000, 90.0, 99.0, 170.0)]
    profile = Profile(200, [("sink.kafka.encode.encode", 0.75), ("log.client.sender.send", 0.25)])
    write(str(tmp_path), {"cores": 2}, Found(runs, latencies, rounds, profile), quick=True, peer="debezium")
    page = (tmp_path / "pipeline.md").read_text()
    assert "`millrace bench pipeline --quick --peer debezium`" in page
    assert "| through | millrace | 1,000 | 2.0 | 500 | 0.2 | 0.5 | 2,000 | 0.1 | 0.00 |" in page
    assert "| rows/s against Debezium | 1.50 x | 2 x | missed |" in page
    assert "| rows per client CPU-second against Debezium | 8.00 x | 4 x | met |" in page
    assert "| median latency | 30 ms | 31 ms | met |" in page
    assert "| 10 | 60 ms | 80 ms | 70 ms | 119 ms | 140 ms | met |" in page
    assert "| 1,000 | 90 ms | 99 ms | 170 ms | 151 ms | 169 ms | missed |" in page
    assert "| brokers | 3.0 | 75% |" in page
    assert "200 samples" in page
    assert "| `sink.kafka.encode.encode` | 75.0% |" in page
    body = json.loads((tmp_path / "pipeline.json").read_text())
    assert (len(body["runs"]), body["latencies"][1]["p99_ms"]) == (3, 60.0)


def test_without_a_peer_nothing_is_judged(tmp_path: Path) -> None:
    found = Found([Run("alone", "millrace", 1, 1.0, 1.0, 0, 0, 0, {})], [Latency("millrace", 1, 1.0, 1.0)], [],
                  Profile(trouble="py-spy is not installed"))
    write(str(tmp_path), {}, found, quick=False, peer=None)
    page = (tmp_path / "pipeline.md").read_text()
    assert "wanted" not in page
    assert "Workers were not looked at: py-spy is not installed." in page
