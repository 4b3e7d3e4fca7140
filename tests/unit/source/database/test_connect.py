"""URLs, names and errors, without a server [A8]."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from millrace.errors import (
    ConfigError,
    MillraceError,
    PublicationMissing,
    SlotActive,
    SlotLost,
    SlotMissing,
    SourceAuthFailed,
    SourceError,
    SourceNotPermitted,
    SourceNotReady,
    SourceNotSuited,
    SourceUnreachable,
    TimedOut,
)
from millrace.ops.secrets import ANYWHERE, Places
from millrace.source.database.connect import Database, application_name, classify, epoch_of


def test_A8_references_in_a_url_are_resolved_and_the_password_is_shown_nowhere() -> None:
    environ = {"PW": "s3cr/et@x", "WHOLE": "postgresql://app:s3cr%2Fet%40x@db:5432/shop"}
    for url in ("postgresql://app:${env:PW}@db:5432/shop", "${env:WHOLE}"):
        database = Database(url, environ=environ, places=ANYWHERE)
        assert repr(database) == "Database(app@db:5432/shop)"
        assert database.masked("say s3cr/et@x and s3cr%2Fet%40x") == "say ******** and ********"
        error = database.error(psycopg.OperationalError('invalid "s3cr/et@x"\nsecond line'), "connect")
        assert str(error) == 'connect: app@db:5432/shop: invalid "********" second line'


def test_A8_a_url_that_cannot_be_read_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        Database("postgresql://app:topsecret@db:5432/shop?nonsense=1")
    assert "topsecret" not in str(caught.value)
    with pytest.raises(ConfigError, match="NOT_SET"):
        Database("postgresql://app:${env:NOT_SET}@db/shop", environ={}, places=ANYWHERE)


def test_S6_every_session_prints_values_the_same_way_and_keeps_the_options_of_the_url() -> None:
    text = Database("postgresql://db/shop?options=-c%20geqo%3Doff", source="shop", epoch=3).conninfo(replication=True)
    parts = psycopg.conninfo.conninfo_to_dict(text)
    assert parts["application_name"] == "millrace/shop/3"
    assert parts["replication"] == "database"
    for setting in ("-c geqo=off", "-c DateStyle=ISO", "-c TimeZone=UTC", "-c search_path=pg_catalog",
                    "-c row_security=off", "-c idle_in_transaction_session_timeout=0"):
        assert setting in str(parts["options"])


def test_S3_a_connection_names_its_source_and_epoch() -> None:
    for source, epoch in (("shop", 0), ("a-b_c", 123456789), ("x" * 40, 4_000_000_000)):
        name = application_name(source, epoch)
        assert len(name) <= 63
        assert epoch_of(name, source) == epoch
        assert epoch_of(name, "other") is None
    for foreign in ("", "psql", "millrace/shop/", "millrace/shop/x", "millrace/shop/-1", "millrace/shop/2/3"):
        assert epoch_of(foreign, "shop") is None


class WithState(psycopg.Error):
    def __init__(self, text: str, state: str) -> None:
        super().__init__(text)
        self.sqlstate = state


@pytest.mark.parametrize(("text", "state", "kind"), [
    ("x", "08006", SourceUnreachable), ("x", "57P01", SourceUnreachable), ("x", "57P03", SourceNotReady),
    ("x", "28P01", SourceAuthFailed), ("x", "3D000", SourceAuthFailed), ("x", "42501", SourceNotPermitted),
    ("x", "55006", SlotActive), ("x", "53400", SourceNotSuited), ("x", "55P03", TimedOut), ("x", "42601", SourceError),
    ('can no longer access replication slot "s"', "55000", SlotLost),
    ('can no longer get changes from replication slot "s"', "55000", SlotLost),
    ("logical decoding requires wal_level >= logical", "55000", SourceNotSuited),
    ("replication slots can only be used if max_replication_slots > 0", "55000", SourceNotSuited),
    ('replication slot "s" does not exist', "42704", SlotMissing),
    ('publication "p" does not exist', "42704", PublicationMissing),
])
def test_L22_errors_of_the_server_are_of_our_tree(text: str, state: str, kind: type[MillraceError]) -> None:
    assert classify(WithState(text, state)) is kind


@pytest.mark.parametrize(("text", "kind"), [
    ("connection refused", SourceUnreachable), ("FATAL: the database system is starting up", SourceNotReady),
    ("FATAL: sorry, too many clients already", SourceNotReady), ('FATAL: role "x" does not exist', SourceAuthFailed),
    ('FATAL: database "x" does not exist', SourceAuthFailed), ("FATAL: no pg_hba.conf entry", SourceAuthFailed),
    ("FATAL: must be superuser or replication role to start walsender", SourceNotPermitted),
    ("SSL error: certificate verify failed", SourceAuthFailed),
])
def test_L22_failed_connections_are_told_apart_by_their_text(text: str, kind: type[MillraceError]) -> None:
    assert classify(psycopg.OperationalError(text)) is kind


def test_S13_references_are_resolved_at_every_connect(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("first\n")
    database = Database(f"postgresql://app:${{file:{secret}}}@db/shop", places=Places(dirs=(str(tmp_path),)))
    secret.write_text("second\n")
    assert psycopg.conninfo.conninfo_to_dict(database.conninfo())["password"] == "second"
    assert database.masked("first, second") == "********, ********"      # a late message about the old one
    secret.unlink()
    with pytest.raises(ConfigError, match="write the secret there"):
        database.conninfo()
