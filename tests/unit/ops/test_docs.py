"""Every key, metric, route, error and exit code is documented: the pages are made from the code and must be current."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from millrace.api.app import ROUTES
from millrace.api.capture_app import CAPTURE_ROUTES
from millrace.api.problems import HTTP_CODES
from millrace.api.sources import SourceRequest
from millrace.api.topics import TopicRequest

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


def test_what_a_route_does_is_told_to_the_end_of_the_sentence() -> None:
    rows = re.findall(r"^\| [A-Z]+ \| `[^`]+` \| (.*) \|$", (ROOT / "docs" / "reference.md").read_text(), re.M)
    assert len(rows) > 20
    assert [row for row in rows if row and row[-1] not in ".]"] == []


def test_A1_codes_that_routes_answer_by_themselves_are_documented() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    assert all(f"| `{code}` | {status} |" in page for status, code in HTTP_CODES.items())


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_the_operating_page_says_what_to_do_for_every_alert() -> None:
    rules = "".join(path.read_text() for path in (ROOT / "src" / "millrace" / "alerts").glob("*.rules.yaml"))
    rows = re.findall(r"^\| (Millrace\w+(?:, Millrace\w+)*) \| \S", (ROOT / "docs" / "operating.md").read_text(), re.M)
    named = [alert for row in rows for alert in row.split(", ")]
    assert len(named) == len(set(named))
    assert set(named) == set(re.findall(r"alert: (\w+)", rules))


def test_A1_the_http_calls_of_the_operating_page_are_what_the_api_takes() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    head = r"""^curl -X POST http://\S+?:\d+(/\S+) -H "\$TOKEN" -H "\$JSON" \\\n"""
    calls = re.findall(head + r" +-d '(.*)'$", page, re.MULTILINE)
    wanted = {"/api/v2/topics": (ROUTES, TopicRequest), "/api/v2/sources": (CAPTURE_ROUTES, SourceRequest)}
    assert [path for path, _ in calls] == list(wanted)
    for path, body in calls:
        routes, kind = wanted[path]
        assert any(route.path == path and "POST" in (route.methods or ()) for route in routes)
        msgspec.json.decode(body, type=kind)


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


def test_every_test_that_is_named_with_a_fault_is_there() -> None:
    named = re.findall(r"`(tests/[^`]+)::(\w+)`", (ROOT / "docs" / "GUARANTEES.md").read_text())
    assert len(named) > 20
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert missing == []


def test_every_rule_that_a_test_names_stands_on_the_rules_page() -> None:
    rules = re.findall(r"^- ([A-Z])(\d+) ", (ROOT / "docs" / "rules.md").read_text(), re.M)
    numbers: dict[str, list[int]] = {}
    for letter, number in rules:
        numbers.setdefault(letter, []).append(int(number))
    holes = {letter: found for letter, found in numbers.items() if found != list(range(1, len(found) + 1))}
    assert holes == {}
    named = {rule for path in (ROOT / "tests").rglob("test_*.py")
             for name in re.findall(r"^(?:async )?def test_((?:[A-Z]\d+_)+)", path.read_text(), re.M)
             for rule in name.strip("_").split("_")}
    known = {f"{letter}{number}" for letter, number in rules}
    assert {rule for rule in named - known if rule[0] in numbers} == set()
