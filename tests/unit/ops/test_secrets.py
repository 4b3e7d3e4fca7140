"""Secrets work and are never shown [A8]."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path

import pytest
import structlog

from millrace.errors import ConfigError
from millrace.ops import logging as logs
from millrace.ops.config import LoggingConfig
from millrace.ops.secrets import MASK, Secret, has_clear_password, mask, redact


def test_A8_no_printed_form_shows_the_value() -> None:
    secret = Secret("hunter2")
    assert secret.reveal() == "hunter2"
    for form in (str(secret), repr(secret), f"{secret}", f"{secret:>20}", "%s" % secret, repr([secret])):  # noqa: UP031
        assert "hunter2" not in form
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_references_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("from file\n")
    assert Secret.resolve("plain") == Secret("plain")
    assert Secret.resolve("${env:X}", {"X": "from env"}).reveal() == "from env"
    assert Secret.resolve(f"${{file:{path}}}").reveal() == "from file"
    with pytest.raises(ConfigError, match="environment variable is not set"):
        Secret.resolve("${env:X}", {})
    with pytest.raises(ConfigError, match="No such file"):
        Secret.resolve("${file:/nonexistent}")


def test_A8_redaction_masks_secrets_names_and_urls() -> None:
    shown = redact({"password": "p1", "list": [Secret("p2")], "url": "etcd://me:p3@host:2379/x", "n": 3, "secret": ""})
    assert shown == {"password": MASK, "list": [MASK], "url": f"etcd://me:{MASK}@host:2379/x", "n": 3, "secret": ""}


@pytest.fixture
def keep_logging() -> object:
    """Configuring logs is for processes; a test puts back what was there."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.usefixtures("keep_logging")
def test_A8_logs_are_json_lines_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "x.log"
    logs.configure(LoggingConfig(), path=str(path))
    logs.get_logger("room").info("connected", url="etcd://me:topsecret@h:1", password=Secret("topsecret"), broker=3)
    logs.get_logger("room").debug("not written")
    logging.getLogger("library").warning("plain %s", "words")
    text = path.read_text()
    assert "topsecret" not in text
    first, second = map(json.loads, text.splitlines())
    assert (first["event"], first["broker"], first["level"], first["logger"]) == ("connected", 3, "info", "room")
    assert second["event"] == "plain words"


@pytest.mark.usefixtures("keep_logging")
def test_logs_are_rotated_within_their_bound(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    logs.configure(LoggingConfig(file_bytes_max=65536, files_kept=2), path=str(path))
    for _ in range(400):
        logs.get_logger("room").info("x" * 1000)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.log", "x.log.1", "x.log.2"]
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 3 * 65536


@pytest.mark.parametrize(("text", "shown"), [
    ("postgresql://u:geheim@h/db", f"postgresql://u:{MASK}@h/db"),
    ("postgresql://u:ge@heim@h/db", f"postgresql://u:{MASK}@h/db"),
    ("postgresql://u:ge/heim@h/db", f"postgresql://u:{MASK}@h/db"),
    ("could not open postgres://u:geheim@h/db?sslmode=require now",
     f"could not open postgres://u:{MASK}@h/db?sslmode=require now"),
    ("host=h password=geheim dbname=d", f"host=h password={MASK} dbname=d"),
    ("host=h password='ge heim' dbname=d", f"host=h password={MASK} dbname=d"),
    ("host=h password='ge\\' heim' dbname=d", f"host=h password={MASK} dbname=d"),
    ("postgresql://h/db?user=u&password=geheim&sslpassword=geheim",
     f"postgresql://h/db?user=u&password={MASK}&sslpassword={MASK}"),
])
def test_A8_passwords_inside_urls_and_connection_strings_are_masked_and_noticed(text: str, shown: str) -> None:
    assert mask(text) == shown
    assert "heim" not in mask(text)
    assert has_clear_password(text)
    assert not has_clear_password(shown.replace(MASK, "${env:SECRET}"))


def test_A8_of_a_spark_address_its_place_is_shown_and_no_session() -> None:
    said = "no Spark Connect server answers at sc://127.0.0.1:15002/;user_id=millrace;session_id=7b0f-4a51: refused"
    assert mask(said) == "no Spark Connect server answers at sc://127.0.0.1:15002/: refused"
    assert mask("sc://h:1; wait") == "sc://h:1; wait"


@pytest.mark.parametrize("text", [
    "postgresql://u@h:5432/db", "postgresql:///db?host=/run/pg", "host=h dbname=d", "${env:URL}", "${file:/run/url}",
    "postgresql://u:${env:P}@h/db", "host=h password=${file:/run/p} dbname=d",
])
def test_A8_references_and_urls_without_password_are_left_alone(text: str) -> None:
    assert mask(text) == text
    assert not has_clear_password(text)


def test_A8_references_inside_a_text_are_replaced_as_it_needs_them(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("a/b@c'd\\ \n")
    environ = {"P": "a/b@c'd"}
    assert Secret.expand("postgresql://u:${env:P}@h/db", environ).reveal() == "postgresql://u:a%2Fb%40c%27d@h/db"
    assert Secret.expand("host=h password=${env:P}", environ).reveal() == "host=h password='a/b@c\\'d'"
    assert Secret.expand(f"host=h password=${{file:{tmp_path}/p}}").reveal() == "host=h password='a/b@c\\'d\\\\ '"
    assert Secret.expand("${env:U}", {"U": "postgresql://u:p@h/db"}).reveal() == "postgresql://u:p@h/db"
    with pytest.raises(ConfigError, match="NONE"):
        Secret.expand("postgresql://u:${env:NONE}@h/db", {})
