"""`table copy --wait`: progress, and how it ends [A2]."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.cli import table
from millrace.cli.exits import FAILED, TIMED_OUT, CommandFailed

MADE = {"source": "shop", "table": "public.t", "copy": 2}


class Told:
    """Answers of a capture, one after another; the last one stays."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)

    def ask(self, method: str, path: str) -> Any:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def source(state: str, *copies: dict[str, Any], why: str = "", next_step: str = "") -> dict[str, Any]:
    return {"state": state, "why": why, "next_step": next_step, "copies": list(copies)}


def copied(state: str, percent: float, why: str = "") -> dict[str, Any]:
    return {"copy": 2, "state": state, "percent": percent, "why": why, "rows": "7"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "POLL_S", 0.0)


def wait(told: Told, timeout_s: float = 5.0) -> dict[str, Any]:
    return table._wait_until_done(told, MADE, timeout_s, silent=False)  # type: ignore[arg-type]


def test_A2_a_copy_is_waited_for_with_its_progress(capsys: pytest.CaptureFixture[str]) -> None:
    done = wait(Told(source("copying", copied("running", 12.5)), source("copying", copied("running", 19.0)),
                     source("copying", copied("running", 60.0, "waits for a writer")),
                     source("streaming", copied("done", 100.0))))
    assert (done["table"], done["rows"]) == ("public.t", "7")
    assert capsys.readouterr().out.splitlines() == ["public.t: 10 %", "public.t: 60 %, waits for a writer"]


@pytest.mark.parametrize(("answer", "code", "says"), [
    (source("failed", copied("waiting", 0.0), why="authentication failed", next_step="write it"), FAILED, "write it"),
    (source("streaming"), FAILED, "given up"),
    (source("copying", copied("waiting", 0.0, "row security")), TIMED_OUT, "row security; it goes on by itself"),
])
def test_A2_a_copy_that_does_not_come_to_its_end_says_why(answer: dict[str, Any], code: int, says: str) -> None:
    with pytest.raises(CommandFailed, match=says) as failed:
        wait(Told(answer), timeout_s=0.05)
    assert failed.value.code == code
