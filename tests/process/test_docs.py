"""Every command in the documentation is run: ```console blocks of README.md and docs/*.md, top to bottom.

Commands run in a directory of their own with other ports (through the environment of `up`), so that a running cluster
of the reader is left alone. `make` lines are only checked for their target: they set up the machine and run this suite.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from support_cluster import free_ports

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    lines = "\n".join(BLOCK.findall(page.read_text())).splitlines()
    assert all(line.startswith("$ ") for line in lines if line), "a console block holds commands only"
    return [line[2:].split("  #")[0].strip() for line in lines if line]


ALL = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in ALL if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_A5_documented_commands_work(page: Path, tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    base = free_ports(1)[0]
    ports = f" --kafka-port {base} --http-port {base + 300}"
    started = False
    try:
        for command in commands(page):
            arguments = shlex.split(command)
            if arguments[0] == "make":
                assert re.search(rf"^{arguments[1]}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE), command
                continue
            started = started or arguments[1] == "up"
            done = subprocess.run(command + (ports if arguments[1] == "up" else ""), shell=True, cwd=tmp_path,
                                  env=os.environ, capture_output=True, text=True, timeout=90, check=False)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    finally:
        if started:
            subprocess.run([".venv/bin/millrace", "down"], cwd=tmp_path, check=False, capture_output=True)


def test_the_pages_have_commands() -> None:
    assert {"README.md", "operating.md"} <= {page.name for page in PAGES}
