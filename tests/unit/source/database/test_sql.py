"""The statements that a source makes, as text."""

from __future__ import annotations

from millrace.source.database import sql


def test_S1_a_slot_is_asked_for_as_each_version_understands_it() -> None:
    assert sql.create_slot("s", server_version=140005) == 'CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput EXPORT_SNAPSHOT'
    assert sql.create_slot("s", server_version=150018) == (
        "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'export')")
    assert sql.create_slot("s", server_version=170000) == (
        "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER true)")


def test_S11_no_publication_takes_all_tables_and_every_name_is_quoted() -> None:
    assert sql.create_publication('p"; DROP', "shop")[0] == (
        'CREATE PUBLICATION "p""; DROP" WITH (publish_via_partition_root = true);')
    assert sql.publish("p", 'a"b', "c.d") == 'ALTER PUBLICATION "p" ADD TABLE ONLY "a""b"."c.d";'


def test_S11_trigger_functions_swallow_every_error_and_run_as_who_calls_them() -> None:
    for body in sql.trigger_bodies("shop"):
        assert "EXCEPTION WHEN OTHERS THEN" in body
        assert "'millrace.shop'" in body
    for statement in sql.create_triggers("shop"):
        assert "SECURITY DEFINER" not in statement
