"""Each file in stories/ must give, line by line, what it says. MILLRACE_RETELL=1 writes what came instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support_stories import tell

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    told = tell(path.read_text())
    if os.environ.get("MILLRACE_RETELL"):
        path.write_text(told)
    assert told == path.read_text()


def test_there_are_stories() -> None:
    assert len(STORIES) >= 5
