"""Secrets work and are never shown [A8]."""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest
import structlog

from millrace.errors import ConfigError, ReferenceRefused
from millrace.ops import logging as logs
from millrace.ops.config import LoggingConfig, load, parse
from millrace.ops.secrets import ANYWHERE, MASK, NOWHERE, Places, Secret, has_clear_password, mask, redact


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
    assert Secret.resolve("${env:X}", {"X": "from env"}, places=ANYWHERE).reveal() == "from env"
    assert Secret.resolve(f"${{file:{path}}}", places=ANYWHERE).reveal() == "from file"
    with pytest.raises(ConfigError, match="environment variable is not set"):
        Secret.resolve("${env:X}", {}, places=ANYWHERE)
    with pytest.raises(ConfigError, match="No such file"):
        Secret.resolve("${file:/nonexistent}", places=ANYWHERE)


def test_A8_redaction_masks_secrets_names_and_urls() -> None:
    assert redact({"db_password": "p0", "the_secret": "p9"}) == {"db_password": MASK, "the_secret": MASK}
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

    def expanded(text: str, environ: Mapping[str, str] = environ) -> str:
        return Secret.expand(text, environ, places=ANYWHERE).reveal()

    assert expanded("postgresql://u:${env:P}@h/db") == "postgresql://u:a%2Fb%40c%27d@h/db"
    assert expanded("host=h password=${env:P}") == "host=h password='a/b@c\\'d'"
    assert expanded(f"host=h password=${{file:{tmp_path}/p}}") == "host=h password='a/b@c\\'d\\\\ '"
    assert expanded("${env:U}", {"U": "postgresql://u:p@h/db"}) == "postgresql://u:p@h/db"
    with pytest.raises(ConfigError, match="NONE"):
        Secret.expand("postgresql://u:${env:NONE}@h/db", {}, places=ANYWHERE)


# -- places [A10] --------------------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A directory with a secret, beside one whose name begins alike, and links of all kinds."""
    inside, beside = tmp_path / "secrets", tmp_path / "secretsX"
    for directory in (inside, inside / "deep", beside):
        directory.mkdir()
        (directory / "password").write_text("geheim\n")
    (inside / "out").symlink_to(beside / "password")
    (inside / "outdir").symlink_to(beside)
    (inside / "in").symlink_to(inside / "deep")
    (tmp_path / "way").symlink_to(inside)
    return Places(dirs=(str(tmp_path / "way"),), env=("SHOP", "MILLRACE_SECRET_*"))


@pytest.mark.parametrize("path", ["secrets/password", "secrets/deep/password", "secrets/in/password", "way/password",
                                  "secrets/deep/../password", "secrets//password"])
def test_A10_files_inside_the_named_directories_are_read(tmp_path: Path, places: Places, path: str) -> None:
    reference = f"${{file:{tmp_path}/{path}}}"
    places.check(f"postgresql://u:{reference}@h/d")
    assert Secret.resolve(reference, places=places).reveal() == "geheim"


@pytest.mark.parametrize("path", [
    "{tmp}/secretsX/password", "{tmp}/secrets/../secretsX/password", "{tmp}/secrets/out",
    "{tmp}/secrets/outdir/password", "{tmp}/secrets", "{tmp}/secretsX", "secrets/password", "./secrets/password",
    "/etc/passwd", "/proc/self/environ",
    "/nowhere", "{tmp}/secrets/\0", "~/secrets/password", " {tmp}/secrets/password"])
def test_A10_files_elsewhere_are_refused_whether_or_not_they_are_there(
    tmp_path: Path, places: Places, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reference = f"${{file:{path.format(tmp=tmp_path)}}}"
    for refused in (lambda: places.check(f"host=h password={reference}"),
                    lambda: Secret.resolve(reference, places=places),
                    lambda: Secret.expand(f"postgresql://u:{reference}@h/d", places=places)):
        with pytest.raises(ReferenceRefused, match=r"capture\.secret_dirs") as caught:
            refused()
        assert "geheim" not in str(caught.value)


def test_A10_only_named_variables_are_read(places: Places) -> None:
    environ = {"SHOP": "a", "MILLRACE_SECRET_X": "b", "SHOP2": "c", "AWS_SECRET_KEY": "d", "MILLRACE_SECRET": "e"}
    assert Secret.expand("postgresql://${env:SHOP}:${env:MILLRACE_SECRET_X}@h/d", environ,
                         places=places).reveal() == "postgresql://a:b@h/d"
    for name in ("SHOP2", "AWS_SECRET_KEY", "MILLRACE_SECRET", "shop", "UNSET"):
        with pytest.raises(ReferenceRefused, match=r"capture\.secret_env"):
            places.check(f"postgresql://u:${{env:{name}}}@h/d")
        with pytest.raises(ReferenceRefused):
            Secret.resolve(f"${{env:{name}}}", environ, places=places)


def test_A10_nobody_reads_anything_by_default(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("x")
    for reference in (f"${{file:{tmp_path}/p}}", "${env:HOME}"):
        with pytest.raises(ReferenceRefused):
            Secret.resolve(reference)
        with pytest.raises(ReferenceRefused):
            NOWHERE.check(reference)


def test_A10_what_is_no_secret_shows_nothing_of_itself(tmp_path: Path, places: Places) -> None:
    inside = tmp_path / "secrets"
    (inside / "binary").write_bytes(b"geheim\xff")
    (inside / "large").write_text("geheim" * 20_000)
    os.mkfifo(inside / "pipe")
    for name, why in (("binary", "not UTF-8"), ("large", "above"), ("pipe", "no plain file"),
                      ("deep", "Is a directory"), ("none", "No such file")):
        with pytest.raises(ConfigError, match=why) as caught:
            Secret.resolve(f"${{file:{inside}/{name}}}", places=places)
        assert "geheim" not in str(caught.value)


def test_A10_the_places_are_the_configurations(tmp_path: Path) -> None:
    usual = parse("cluster: {dir: /var/lib/m}\n").secret_places
    assert usual == Places(dirs=("/var/lib/m/secrets",), env=("MILLRACE_SECRET_*",))
    (tmp_path / "millrace.yaml").write_text("capture: {secret_dirs: [keys, /run/secrets], secret_env: [SHOP]}\n")
    named = load(str(tmp_path / "millrace.yaml"), {}).secret_places
    assert named == Places(dirs=(str(tmp_path / "keys"), "/run/secrets"), env=("SHOP",))
    other = load(str(tmp_path / "millrace.yaml"), {"MILLRACE_CAPTURE__SECRET_DIRS": "/a,/b"}).secret_places
    assert other.dirs == ("/a", "/b")
