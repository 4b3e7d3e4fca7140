"""Every command in the documentation is run: ```console blocks of README.md and docs/*.md, top to bottom.

Commands run in a directory of their own with other ports (through the environment of `up`), so that a running cluster
of the reader is left alone. `make` lines are only checked for their target: they set up the machine and run this suite.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support_ports import up_ports
from support_postgres import database, run, server_of

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    lines = "\n".join(BLOCK.findall(page.read_text())).splitlines()
    assert all(line.startswith("$ ") for line in lines if line), "a console block holds commands only"
    return [line[2:].split("  #")[0].strip() for line in lines if line]


ALL = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in ALL if BLOCK.search(page.read_text())]


SHOP = """
CREATE TABLE orders (id bigint PRIMARY KEY, note text);
CREATE TABLE tmp_orders (note text);
INSERT INTO orders SELECT n, 'order ' || n FROM generate_series(1, 100) n;
"""


@contextlib.contextmanager
def environment(page: Path) -> Iterator[dict[str, str]]:
    """What a page's reader has: for pages about sources a database, by the variable they name."""
    if "MILLRACE_SECRET_SHOP" not in page.read_text():
        yield dict(os.environ)
        return
    with server_of(15, {"max_slot_wal_keep_size": "1GB"}) as server, database(server) as name:
        run(server.url(name), SHOP)
        yield {**os.environ, "MILLRACE_SECRET_SHOP": server.url(name)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_A5_documented_commands_work(page: Path, tmp_path: Path) -> None:
    with environment(page) as environ:
        work_through(page, tmp_path, environ)


def work_through(page: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    kafka, http = up_ports(brokers=5, captures=5)
    # What most pages show needs no Spark, whose start costs more than all of it.
    spark = "" if "changefeed create" in page.read_text() else " --no-spark"
    ports = f" --kafka-port {kafka} --http-port {http}{spark}"
    started = False
    try:
        for command in commands(page):
            arguments = shlex.split(command)
            if arguments[0] == "make":
                assert re.search(rf"^{arguments[1]}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE), command
                continue
            started = started or arguments[1] == "up"
            done = subprocess.run(command + (ports if arguments[1] == "up" else ""), shell=True, cwd=tmp_path,
                                  env=environ, capture_output=True, text=True, timeout=90, check=False)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    finally:
        if started:
            subprocess.run([".venv/bin/millrace", "down"], cwd=tmp_path, check=False, capture_output=True)


def test_the_pages_have_commands() -> None:
    assert {"README.md", "operating.md", "sources.md", "changefeeds.md"} <= {page.name for page in PAGES}
