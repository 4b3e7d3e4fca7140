"""Where a capture finds Spark, out of its configuration [P6]."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import ConfigError
from millrace.ops import config
from millrace.pipeline.driver import place_of


def test_P6_a_connect_server_a_driver_or_nothing(tmp_path: Path) -> None:
    assert place_of(config.parse("spark: {remote: 'sc://a:1'}"), str(tmp_path)).remote == "sc://a:1"
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=r"spark\.remote.*spark\.master"):
        place_of(config.parse(""), str(tmp_path))


@pytest.mark.parametrize(("master", "used"), [
    ("local[*]", "local[*,2]"), ("local[3]", "local[3,2]"), ("local[3,7]", "local[3,7]"),
    ("spark://a:7077", "spark://a:7077"),
])
def test_P5_a_local_master_tries_a_task_again(tmp_path: Path, master: str, used: str) -> None:
    place = place_of(config.parse(f"spark: {{master: '{master}', conf: ['spark.speculation=maybe']}}"), str(tmp_path))
    assert place.master == used
    assert place.conf["spark.scheduler.mode"] == "FAIR"
    assert place.conf["spark.speculation"] == "maybe", "the operator's own settings win"
    assert ("spark.driver.host" in place.conf) == master.startswith("local")
    pools = (tmp_path / "pools.xml").read_text()
    assert "<schedulingMode>FIFO<" in pools, "under FAIR a job waits for as long as others come whose names are less"
