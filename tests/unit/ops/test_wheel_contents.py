"""What an installed millrace has: its alert rules, and nothing that only tests use [A9]."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
BUILD = "import setuptools.build_meta as backend; backend.build_wheel('out')"


def test_A9_the_wheel_ships_the_alert_rules_and_not_their_tests(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for room in ("millrace/alerts", "millrace/cli"):
        shutil.copytree(ROOT / "src" / room, tmp_path / "src" / room, ignore=shutil.ignore_patterns("__pycache__"))
    for room in ("millrace", "millrace_sim"):
        (tmp_path / "src" / room).mkdir(exist_ok=True)
        shutil.copy(ROOT / "src" / room / "__init__.py", tmp_path / "src" / room)
    (tmp_path / "out").mkdir()
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", BUILD], cwd=tmp_path, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    rules = sorted(path.name for path in (ROOT / "src" / "millrace" / "alerts").glob("*.rules.yaml"))
    assert sorted(name.rpartition("/")[2] for name in names if name.startswith("millrace/alerts/")) == rules
    assert "millrace/cli/alerts.py" in names
    assert [name for name in names if name.startswith("millrace_sim")] == [], "it runs from the checkout"
