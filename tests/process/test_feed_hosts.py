"""Hosts of changefeeds as real processes with kill -9: one changefeed through its life [C1-C9, V9]."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support_cluster import wait_for
from support_feeds import Target
from support_feeds_child import FEED, serve_target

TESTS = Path(__file__).parents[1]
ASK_AGAIN_S = 5.0


class Child:
    def __init__(self, number: int, store: str, address: str, stderr: Path) -> None:
        self.number, self.shown = number, dict[str, Any]()
        environment = dict(os.environ, PYTHONPATH=f"{TESTS}:{TESTS.parent / 'src'}")
        with stderr.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "support_feeds_child", str(number), store, address], env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.shown = json.loads(line)

    def ask(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Site:
    def __init__(self, directory: Path) -> None:
        self.directory, self.target = directory, Target(FEED)
        self.server: Any = serve_target(self.target).get_server()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        self.children: dict[int, Child] = {}

    def _serve(self) -> None:
        try:
            self.server.serve_forever()
        except SystemExit:
            pass

    def start(self, number: int) -> None:
        host, port = self.server.address
        self.children[number] = Child(
            number, str(self.directory / "store"), f"{host}:{port}", self.directory / f"{number}.stderr")

    def kill(self, number: int) -> None:
        self.children.pop(number).end()

    def close(self) -> None:
        for number in list(self.children):
            self.kill(number)
        self.server.stop_event.set()
        self.thread.join()

    # -- what is seen
    def coordinator(self) -> Child | None:
        found = [child for child in self.children.values() if child.shown.get("token")]
        return max(found, key=lambda child: int(child.shown["token"])) if found else None

    def maintainer(self) -> Child | None:
        found = [child for child in self.children.values() if child.shown.get("maintains")]
        return max(found, key=lambda child: int(child.shown["maintains"])) if found else None

    def is_at_work(self, upto: int) -> bool:
        """Placed, each where it is recorded; everything eaten; the checkpoint says so."""
        child = self.maintainer()
        if child is None or child.shown.get("under_way") or child.shown.get("checkpoint", -1) < upto:
            return False
        held = {(int(s), c.number, epoch) for c in self.children.values() for s, epoch in c.shown["held"].items()}
        placed = {(int(s), capture, epoch) for s, (capture, epoch) in child.shown["placed"].items()}
        return bool(held) and held <= placed and self.target.is_eaten()

    def is_back(self, number: int) -> bool:
        return bool(self.children[number].shown)

    def is_idle(self) -> bool:
        return not any(child.shown["held"] or child.shown["maintains"] for child in self.children.values())

    def ask(self, word: str, condition: Callable[[], object]) -> None:
        """As a patient client: again, if whoever was asked lost its office or its life before it wrote."""
        asked_at = 0.0

        def holds() -> object:
            nonlocal asked_at
            child = self.coordinator()
            if child is not None and time.monotonic() - asked_at > ASK_AGAIN_S:
                asked_at = time.monotonic()
                child.ask(word)
            return condition()

        wait_for(holds, word, 60)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        for number in (1, 2, 3):
            site.start(number)
        yield site
        assert site.target.found() == []
    except BaseException:
        for log in sorted(tmp_path.glob("*.stderr")):
            print(log.name, log.read_text()[-4000:])
        raise
    finally:
        site.close()


def test_C1_C4_kill_9_moves_what_was_there_and_nothing_is_written_twice(site: Site) -> None:
    site.target.advance(15)
    site.ask("create", lambda: site.is_at_work(15))
    for upto in (30, 45):                                         # the maintainer's process, whatever else it is
        child = site.maintainer()
        assert child is not None
        epoch = child.shown["maintains"]
        site.kill(child.number)
        site.target.advance(upto)
        wait_for(partial(site.is_at_work, upto), f"moved away from {child.number}", 60)
        moved = site.maintainer()
        assert moved is not None
        assert moved.shown["maintains"] > epoch
        site.start(child.number)
        wait_for(partial(site.is_back, child.number), "the capture is back", 60)
    highest = max(site.target.epochs().values())
    site.ask("pause", site.is_idle)
    site.target.advance(59)
    site.ask("resume", lambda: site.is_at_work(59))
    assert max(site.target.epochs().values()) > highest
    site.ask("remove", lambda: (child := site.coordinator()) is not None and child.shown["feeds"] == [])
    assert site.target.removed_at > highest
    assert site.target.removed_at == min(site.target.epochs().values())
