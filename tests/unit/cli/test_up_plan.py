"""`millrace up` before anything is started: fewer brokers than the directory has data of."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.cli.exits import USAGE, CommandFailed
from millrace.cli.up import make_plan
from support_ports import up_ports


def plan(directory: Path, brokers: int) -> int:
    kafka, http = up_ports(brokers)
    made = make_plan(brokers=brokers, captures=0, dir=str(directory), http_port=http, kafka_port=kafka, store=None,
                     spark=False)
    return len(made.brokers)


def test_L3_fewer_brokers_than_have_data_are_refused_with_what_to_do(tmp_path: Path) -> None:
    assert plan(tmp_path, 1) == 1
    for broker in range(3):
        (tmp_path / f"broker-{broker}").mkdir()
    (tmp_path / "broker-notes").mkdir()
    with pytest.raises(CommandFailed) as refused:
        plan(tmp_path, 1)
    assert refused.value.code == USAGE
    assert "--brokers 3" in str(refused.value)
    assert str(refused.value).endswith("broker-1, broker-2")
    assert plan(tmp_path, 3) == 3
    assert plan(tmp_path, 4) == 4
    (tmp_path / "broker-2").rmdir()
    assert plan(tmp_path, 2) == 2, "its directory was moved away"
