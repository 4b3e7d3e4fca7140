from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.marked import marked


def test_P4_the_place_is_marked() -> None:
    assert marked("tables[0]", "orders", 6, "a dot is missing") == "tables[0]: a dot is missing\norders\n      ^"
    assert marked("filter", "a >\n  bad(x)\n> 1", 6, "no", length=3).split("\n")[1:] == ["  bad(x)", "  ^^^"]


@given(st.text(max_size=400), st.integers(-1, 450), st.integers(0, 500))
def test_P4_whatever_is_shown_the_mark_stands_below_its_place(text: str, at: int, length: int) -> None:
    head, shown, marks = marked("x", text, at, "why", length=length).split("\n")
    place = marks.index("^")
    assert head == "x: why"
    assert len(shown) <= 2 * 160 + 2
    assert set(marks[place:]) == {"^"}
    if 0 <= at < len(text) and text[at].isprintable():
        assert shown[place] == text[at]
        assert len(marks) <= len(shown)
