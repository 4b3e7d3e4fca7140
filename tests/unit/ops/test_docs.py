"""Every key, metric, route, error and exit code is documented: the pages are made from the code and must be current."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ("configuration.md", "reference.md")


@pytest.fixture(scope="module")
def make_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES)
def test_made_pages_are_current(make_docs: ModuleType, page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == make_docs.PAGES[page](), "run: make docs"


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_alert_in_the_operating_page_exists() -> None:
    rules = "".join(path.read_text() for path in (ROOT / "deploy" / "alerts").glob("*.rules.yaml"))
    named = set(re.findall(r"\bMillrace[A-Z]\w+", (ROOT / "docs" / "operating.md").read_text()))
    assert named <= set(re.findall(r"alert: (\w+)", rules))


def test_every_guarantee_names_tests_that_name_its_rules() -> None:
    page = (ROOT / "docs" / "GUARANTEES.md").read_text()
    rows = re.findall(r"^\| .* \| ([A-Z]\d.*?) \| (`.*`) \|$", page, re.MULTILINE)
    assert rows
    for rules, tests in rows:
        named = re.findall(r"[A-Z]\d+", rules)
        if " to " in rules:
            named += [f"{named[0][0]}{n}" for n in range(int(named[0][1:]), int(named[1][1:]))]
        for path in re.findall(r"`([^`]+)`", tests):
            names = re.search(rf"(?:test_|\[)(?:{'|'.join(named)})[_\]]", (ROOT / path).read_text())
            assert names, f"{path} names none of {rules}"
