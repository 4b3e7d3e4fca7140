"""Small things of a capture's changefeeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.changefeed.changefeeds import database_name
from millrace.errors import ConfigError
from millrace.ops.secrets import ANYWHERE, NOWHERE


@pytest.mark.parametrize(("url", "name"), [
    ("postgresql://millrace@db.example:5432/shop", "shop"),
    ("postgresql://millrace@db.example/a%20shop?sslmode=require", "a shop"),
    ("host=db.example dbname=shop user=millrace", "shop"),
    ("postgresql://millrace@db.example", "millrace"),
])
def test_K2_messages_name_the_database_as_the_server_does(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGDATABASE", raising=False)
    assert database_name(url, NOWHERE) == name


def test_A8_a_url_by_reference_is_resolved_and_a_bad_one_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://u:pass word@h/shop\n")
    with pytest.raises(ConfigError) as refused:
        database_name("postgresql://u:secret@[h/shop", NOWHERE)
    assert "secret" not in str(refused.value)
    (tmp_path / "url").write_text("postgresql://u:pass@h/shop\n")
    assert database_name(f"${{file:{tmp_path / 'url'}}}", ANYWHERE) == "shop"
