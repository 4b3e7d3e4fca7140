"""Setting a source up and taking it down on real servers [S1, S10, S11]."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from millrace.errors import PublicationMissing, SlotActive, SourceError, SourceNotPermitted, TimedOut
from millrace.model.sources import SourceSpec
from millrace.model.tables import IDENTITY_FULL
from millrace.source.database import setup as making
from millrace.source.database.catalog import table_of
from millrace.source.database.connect import Database
from millrace.source.database.guard import free_slot, slot_state
from millrace.source.database.setup import TOGETHER, Prepared, Setup, published
from millrace.source.server.embedded import PostgresServer
from support_cluster import wait_for
from support_postgres import TRAPS, ask, database, run, update_all

HOSTILE = ['it"s', "sp ace.d%ot", "../..", "Größe", "x" * 63]


def spec_of(url: str, **more: Any) -> SourceSpec:
    return SourceSpec(**{"name": "shop-1", "url": url, "tables": ("*.*",), **more})


def setup_of(url: str, *, epoch: int = 1, **more: Any) -> Setup:
    return Setup(Database(url, source="shop-1", epoch=epoch), spec_of(url, **more))


def ensure(url: str, **more: Any) -> Prepared:
    return asyncio.run(setup_of(url, **more).ensure())


async def with_slot(setup: Setup) -> int:
    await setup.ensure()
    made = await setup.create_slot()
    await made.connection.close()
    return made.consistent_point


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def remains(url: str) -> list[tuple[Any, ...]]:
    return ask(url, """
        SELECT 'publication', pubname::text FROM pg_publication
        UNION ALL SELECT 'trigger', evtname::text FROM pg_event_trigger
        UNION ALL SELECT 'function', proname::text FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
                  WHERE nspname NOT IN ('pg_catalog', 'information_schema')
        UNION ALL SELECT 'schema', nspname::text FROM pg_namespace WHERE nspname LIKE '%millrace%'
        UNION ALL SELECT 'slot', slot_name::text FROM pg_replication_slots WHERE database = current_database()""")


def messages(url: str, slot: str = "millrace_shop_1") -> list[dict[str, Any]]:
    found = ask(url, "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
                     " 'publication_names', 'millrace_shop_1', 'messages', 'true')", slot)
    return [json.loads(bytes(data[10 + len(b"millrace.shop-1") + 1 + 4:])) for (data,) in found if data[:1] == b"M"]


# -- making ------------------------------------------------------------------------------------------------------------


def test_S1_setup_makes_publication_triggers_and_slot_and_remove_leaves_nothing(swept_url: str) -> None:
    run(swept_url, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")

    async def life() -> None:
        setup = setup_of(swept_url)
        prepared = await setup.ensure()
        assert [t.name for t in prepared.tables] == ["a", "b"]
        assert prepared.has_triggers
        assert set(prepared.added) == {t.oid for t in prepared.tables}
        assert (await setup.ensure()).added == ()
        made = await setup.create_slot()
        assert made.consistent_point > 0
        assert made.snapshot
        assert {kind for kind, _ in remains(swept_url)} == {"publication", "trigger", "function", "schema", "slot"}
        await made.connection.close()
        assert await setup.remove() == []

    asyncio.run(life())
    assert remains(swept_url) == []


def test_S4_the_snapshot_of_a_new_slot_can_be_imported_while_its_connection_is_open(swept18_url: str) -> None:
    run(swept18_url, "CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")

    async def life() -> list[Any]:
        setup = setup_of(swept18_url)
        await setup.ensure()
        made = await setup.create_slot()
        run(swept18_url, "INSERT INTO a VALUES (2)")
        with psycopg.connect(swept18_url) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute(f"SET TRANSACTION SNAPSHOT '{made.snapshot}'".encode())
            rows = reader.execute("SELECT id FROM a").fetchall()
        await made.connection.close()
        return rows

    assert asyncio.run(life()) == [(1,)]


def test_S1_a_slot_survives_failover_from_17_on(postgres: PostgresServer, swept_url: str) -> None:
    asyncio.run(with_slot(setup_of(swept_url)))
    if postgres.installation.version[0] >= 17:
        of_ours = "SELECT failover FROM pg_replication_slots WHERE database = current_database()"
        assert ask(swept_url, of_ours) == [(True,)]


def test_S1_a_slot_that_must_wait_names_the_transaction(swept18_url: str) -> None:
    with psycopg.connect(swept18_url, application_name="night job") as open_one:
        open_one.execute("SELECT pg_current_xact_id()")

        async def create() -> None:
            setup = setup_of(swept18_url)
            await setup.ensure()
            await setup.create_slot(wait_s=0.3)

        with pytest.raises(TimedOut, match="night job"):
            asyncio.run(create())
    assert [kind for kind, _ in remains(swept18_url) if kind == "slot"] == []


def test_S1_partitions_stream_under_their_root(swept18_url: str) -> None:
    run(swept18_url, "CREATE TABLE p (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (day)",
        "CREATE TABLE p11 PARTITION OF p1 FOR VALUES FROM (0) TO (5)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
    (table,) = ensure(swept18_url).tables
    assert table.name == "p"
    assert [leaf.name for leaf in table.leaves] == ["p11", "p2"]
    assert ask(swept18_url, "SELECT tablename::text FROM pg_publication_tables") == [("p",)]


def test_issue4_hostile_names_are_published_and_told_by_the_trigger(swept_url: str) -> None:
    for name in HOSTILE:
        run(swept_url, f"CREATE SCHEMA {identifier(name)}",
            f"CREATE TABLE {identifier(name)}.{identifier(name)} ({identifier(name)} int PRIMARY KEY)")
    asyncio.run(with_slot(setup_of(swept_url)))
    for name in HOSTILE:
        run(swept_url, f"ALTER TABLE {identifier(name)}.{identifier(name)} ADD COLUMN b text",
            f"DROP TABLE {identifier(name)}.{identifier(name)}")
    told = messages(swept_url)
    assert [(m["kind"], m["schema"], m["name"]) for m in told] == [
        (kind, name, name) for name in HOSTILE for kind in ("ddl", "drop")]
    assert [[c[1] for c in m["columns"]] for m in told if m["kind"] == "ddl"] == [[name, "b"] for name in HOSTILE]
    assert asyncio.run(setup_of(swept_url).remove()) == []
    assert remains(swept_url) == []


# -- schema changes ----------------------------------------------------------------------------------------------------


def test_S7_messages_tell_what_the_catalogue_says(swept_url: str) -> None:
    run(swept_url, "CREATE TABLE a (id int PRIMARY KEY, b text, g int GENERATED ALWAYS AS (id * 2) STORED)")
    asyncio.run(with_slot(setup_of(swept_url)))
    run(swept_url, "ALTER TABLE a ADD COLUMN n numeric(10,2) NOT NULL DEFAULT 0, DROP COLUMN b",
        "ALTER TABLE a REPLICA IDENTITY FULL", "CREATE TEMP TABLE t (x int)", "CREATE TABLE c AS SELECT 1 AS x",
        "ALTER TABLE a RENAME COLUMN n TO m")
    altered, full, made_as, renamed = messages(swept_url)
    oid = altered["oid"]

    async def version() -> Any:
        async with await Database(swept_url).connect() as connection:
            return (await table_of(connection, oid)).version

    now = asyncio.run(version())
    assert [[c.name, c.type_oid, c.typmod, c.type_name, c.is_key] for c in now.columns] == [
        [c[1], c[2], c[3], c[4], c[6]] for c in renamed["columns"]]
    assert [altered[key] for key in ("tag", "schema", "name", "identity")] == ["ALTER TABLE", "public", "a", "d"]
    assert [c[5] for c in altered["columns"]] == [True, True]
    assert altered["query"].startswith("ALTER TABLE a ADD COLUMN n")
    assert (full["identity"], full["columns"][0][6]) == (IDENTITY_FULL, True)
    assert (made_as["tag"], made_as["name"]) == ("CREATE TABLE AS", "c")


def test_S7_columns_that_go_with_their_type_and_tables_that_go_with_their_schema_are_told(swept_url: str) -> None:
    run(swept_url, "CREATE TYPE mood AS ENUM ('good')", "CREATE TABLE a (id int PRIMARY KEY, m mood)",
        "CREATE SCHEMA s", "CREATE TABLE s.b (id int PRIMARY KEY)")
    asyncio.run(with_slot(setup_of(swept_url)))
    run(swept_url, "DROP TYPE mood CASCADE", "DROP SCHEMA s CASCADE", "CREATE SCHEMA s CREATE TABLE inside (id int)")
    column_gone, table_gone, made = messages(swept_url)
    assert (column_gone["kind"], column_gone["name"], [c[1] for c in column_gone["columns"]]) == ("ddl", "a", ["id"])
    assert (table_gone["kind"], table_gone["schema"], table_gone["name"]) == ("drop", "s", "b")
    assert (made["kind"], made["name"]) == ("ddl", "inside")


def test_S7_triggers_are_left_alone_if_unchanged_made_anew_if_changed_and_dropped_if_off(swept18_url: str) -> None:
    oids = "SELECT oid FROM pg_event_trigger ORDER BY evtname"
    assert ensure(swept18_url).has_triggers
    first = ask(swept18_url, oids)
    assert ensure(swept18_url).has_triggers
    assert ask(swept18_url, oids) == first
    run(swept18_url, 'ALTER EVENT TRIGGER "millrace_shop-1_ddl" DISABLE')
    assert ensure(swept18_url).has_triggers
    assert ask(swept18_url, oids) != first
    assert not ensure(swept18_url, ddl_triggers="off").has_triggers
    assert {kind for kind, _ in remains(swept18_url)} == {"publication"}


# -- the application's statements --------------------------------------------------------------------------------------


def test_S11_a_new_table_without_key_can_be_updated(swept_url: str) -> None:
    run(swept_url, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE old (x int)")
    prepared = ensure(swept_url)
    assert [(u.table.name, u.repair) for u in prepared.unfit] == [
        ("old", ('ALTER TABLE "public"."old" REPLICA IDENTITY FULL;',))]
    run(swept_url, "CREATE TABLE new (x int)")
    assert {u.table.name for u in ensure(swept_url).unfit} == {"old", "new"}
    run(swept_url, "INSERT INTO new VALUES (1)", "UPDATE new SET x = 2", "UPDATE old SET x = 2", "DELETE FROM new")


@pytest.mark.parametrize("carry_whole", [(), ("*.*",)], ids=["keyed only", "whole by choice"])
def test_S11_no_table_of_any_shape_fails_an_update_after_setup(swept_url: str, carry_whole: tuple[str, ...]) -> None:
    run(swept_url, "CREATE TABLE good (id int PRIMARY KEY)", *(one for made in TRAPS.values() for one in made))
    prepared = ensure(swept_url, carry_whole=carry_whole)
    assert "good" in [t.name for t in prepared.tables]
    update_all(swept_url)


def test_S11_an_error_inside_a_trigger_function_fails_no_statement(swept_url: str) -> None:
    run(swept_url, "CREATE TABLE a (id int PRIMARY KEY, b text)")
    asyncio.run(with_slot(setup_of(swept_url)))
    ((emit,),) = ask(swept_url, "SELECT oid::regprocedure::text FROM pg_proc"
                             " WHERE proname = 'pg_logical_emit_message' AND proargtypes[2] = 'bytea'::regtype")
    run(swept_url, "CREATE ROLE plain_app LOGIN", "GRANT CREATE ON SCHEMA public TO plain_app",
        f"REVOKE EXECUTE ON FUNCTION {emit} FROM PUBLIC")
    try:
        with psycopg.connect(swept_url, autocommit=True) as application:
            application.execute("SET ROLE plain_app")
            application.execute("CREATE TABLE mine (id int PRIMARY KEY, c int)")
            application.execute("ALTER TABLE mine DROP COLUMN c")
            application.execute("INSERT INTO mine VALUES (1)")
            application.execute("DROP TABLE mine")
    finally:
        run(swept_url, "DROP OWNED BY plain_app", "DROP ROLE plain_app", f"GRANT EXECUTE ON FUNCTION {emit} TO PUBLIC")
    assert messages(swept_url) == []
    run(swept_url, "ALTER TABLE a DROP COLUMN b", "INSERT INTO a VALUES (1)", "UPDATE a SET id = 2", "DELETE FROM a")
    assert [m["kind"] for m in messages(swept_url)] == ["ddl"]


def test_S11_every_kind_of_ddl_passes_with_our_triggers_in_place(swept_url: str) -> None:
    run(swept_url, "CREATE TABLE q (id int, day int, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)",
        "CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (5)", "CREATE TABLE a (id int PRIMARY KEY, b text)")
    assert ensure(swept_url).has_triggers
    run(swept_url, "CREATE INDEX CONCURRENTLY ab ON a (b)", "REINDEX INDEX CONCURRENTLY ab",
        "DROP INDEX CONCURRENTLY ab",
        "ALTER TABLE q DETACH PARTITION q1 CONCURRENTLY",
        "ALTER TABLE q ATTACH PARTITION q1 FOR VALUES FROM (0) TO (5)",
        "CREATE MATERIALIZED VIEW m AS SELECT id FROM a", "CREATE UNIQUE INDEX ON m (id)",
        "REFRESH MATERIALIZED VIEW CONCURRENTLY m", "VACUUM FULL a", "CLUSTER a USING a_pkey", "SELECT 1 AS x INTO si",
        "CREATE TYPE mood AS ENUM ('good')", "ALTER TYPE mood ADD VALUE 'bad'", "DROP TABLE IF EXISTS nowhere",
        "CREATE TABLE IF NOT EXISTS a (id int)",
        "DO $$ BEGIN CREATE TABLE inner_one (x int); DROP TABLE inner_one; END $$",
        "CREATE TEMP TABLE t (x int); DROP TABLE t", "BEGIN; CREATE TABLE s1 (x int); SAVEPOINT s;"
        " ALTER TABLE s1 ADD y int; ROLLBACK TO s; DROP TABLE s1; COMMIT", "TRUNCATE a", "COMMENT ON TABLE a IS 'x'",
        "CREATE VIEW v AS SELECT 1 AS x", "ALTER VIEW v RENAME TO w", "DROP VIEW w", "ALTER SCHEMA public RENAME TO p2",
        "SET statement_timeout = '10s'; ALTER TABLE p2.a ADD COLUMN c p2.mood[]",
        "DROP SCHEMA p2 CASCADE")


def test_S11_a_table_whose_key_goes_between_check_and_publication_is_not_published(swept18_url: str) -> None:
    """Planted: the look says there is a key, the look under the lock says there is none."""
    run(swept18_url, "CREATE TABLE a (id int PRIMARY KEY)")

    async def race() -> tuple[bool, Any, Any]:
        setup = setup_of(swept18_url)
        await setup.ensure()
        async with await Database(swept18_url).connect() as connection:
            (oid,) = await published(connection, setup.publication)
            seen = await table_of(connection, oid)
            run(swept18_url, f"ALTER PUBLICATION {setup.publication} DROP TABLE a",
                "ALTER TABLE a DROP CONSTRAINT a_pkey")
            together = await setup._publish_together(connection, [seen])
            why = await setup._publish_one(connection, seen)
            return together, why, await published(connection, setup.publication)

    together, why, inside = asyncio.run(race())
    assert not together
    assert "no primary key" in why.reason
    assert inside == frozenset()
    run(swept18_url, "INSERT INTO a VALUES (1)", "UPDATE a SET id = 2")


def test_S11_whoever_holds_a_table_is_not_waited_for_with_locks_on_others_in_hand(
    swept18_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that locks one table, then another, while both are to be published: it is never a deadlock."""
    monkeypatch.setattr(making, "LOCK_S", 2)
    run(swept18_url, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abc"))
    with psycopg.connect(swept18_url) as application:
        application.execute("SET deadlock_timeout = '10ms'")
        application.execute("LOCK TABLE b IN SHARE UPDATE EXCLUSIVE MODE")
        with ThreadPoolExecutor(1) as other:
            prepared = other.submit(ensure, swept18_url)
            wait_for(lambda: ask(swept18_url, "SELECT 1 FROM pg_locks WHERE NOT granted"), "it waits for one of them")
            application.execute("LOCK TABLE a IN SHARE UPDATE EXCLUSIVE MODE")
            (why,) = prepared.result().unfit
    assert (why.table.name, "lock timeout" in why.reason) == ("b", True)
    assert [t.name for t in prepared.result().tables] == ["a", "c"]
    assert [t.name for t in ensure(swept18_url).tables] == ["a", "b", "c"]


def test_S1_many_tables_are_published_by_few_statements(swept18_url: str) -> None:
    run(swept18_url, *(f"CREATE TABLE t{n} (id int PRIMARY KEY)" for n in range(TOGETHER + 1)),
        "CREATE TABLE parent (id int PRIMARY KEY)", "CREATE TABLE child () INHERITS (parent)")
    before = transactions(swept18_url)
    prepared = ensure(swept18_url)
    assert len(prepared.tables) == len(prepared.added) == TOGETHER + 2
    assert [why.table.name for why in prepared.unfit] == ["child"], "a table of its own, and without a key"
    assert transactions(swept18_url) - before < TOGETHER


def transactions(url: str) -> int:
    """That had a number: they wrote."""
    return int(ask(url, "SELECT pg_current_xact_id()::text")[0][0])


def test_S11_a_table_whose_key_was_dropped_leaves_the_publication_and_comes_back_with_a_key(swept_url: str) -> None:
    run(swept_url, "CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    ensure(swept_url)
    run(swept_url, "ALTER TABLE a DROP CONSTRAINT a_pkey")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        run(swept_url, "UPDATE a SET id = 2")
    prepared = ensure(swept_url)
    assert (prepared.tables, [why.table.name for why in prepared.unfit]) == ((), ["a"])
    assert "taken out of the publication" in prepared.unfit[0].reason
    run(swept_url, "UPDATE a SET id = 2", "ALTER TABLE a ADD PRIMARY KEY (id)")
    assert len(ensure(swept_url).added) == 1


def test_S10_a_table_without_key_is_carried_whole_by_choice(swept18_url: str) -> None:
    run(swept18_url, "CREATE TABLE t (x int)")
    (why,) = ensure(swept18_url, carry_whole=("public.t",)).unfit
    run(swept18_url, *why.repair)
    assert [u.table.name for u in ensure(swept18_url).unfit] == ["t"]
    prepared = ensure(swept18_url, carry_whole=("public.t",))
    assert [t.name for t in prepared.tables] == ["t"]
    assert prepared.tables[0].version.keys == ()
    run(swept18_url, "INSERT INTO t VALUES (1)", "UPDATE t SET x = 2", "DELETE FROM t")


# -- roles -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain_url(postgres: PostgresServer) -> Iterator[str]:
    """A database owned by nobody special; the role may replicate, and nothing else."""
    with database(postgres) as name:
        admin = postgres.url(name)
        run(admin, "CREATE ROLE plain LOGIN REPLICATION PASSWORD 'p@ss/word'")
        try:
            yield postgres.url(name, user="plain", password="p%40ss%2Fword")
        finally:
            run(admin, "DROP OWNED BY plain", "DROP ROLE plain")


def admin_of(postgres: PostgresServer, url: str) -> str:
    return postgres.url(url.rsplit("/", 1)[1])


def test_S10_a_plain_role_that_owns_its_tables_works_without_triggers(postgres: PostgresServer, plain_url: str) -> None:
    admin = admin_of(postgres, plain_url)
    name = plain_url.rsplit("/", 1)[1]
    run(admin, f"GRANT CREATE ON DATABASE {name} TO plain", "CREATE SCHEMA app AUTHORIZATION plain",
        "CREATE TABLE public.theirs (id int PRIMARY KEY)")
    run(plain_url, "CREATE TABLE app.a (id int PRIMARY KEY)")

    async def life() -> Prepared:
        setup = setup_of(plain_url)
        prepared = await setup.ensure()
        made = await setup.create_slot()
        await made.connection.close()
        assert await setup.remove() == []
        return prepared

    prepared = asyncio.run(life())
    assert not prepared.has_triggers
    assert "no event triggers" in prepared.notes[0]
    assert [t.full_name for t in prepared.tables] == ["app.a"]
    (why,) = prepared.unfit
    assert why.repair == ('ALTER PUBLICATION "millrace_shop_1" ADD TABLE ONLY "public"."theirs";',)
    assert remains(admin) == []
    with pytest.raises(SourceNotPermitted, match="CREATE EVENT TRIGGER"):
        ensure(plain_url, ddl_triggers="on")


def test_S10_a_role_that_owns_nothing_is_told_the_sql_and_content_after_it(postgres: PostgresServer,
                                                                          plain_url: str) -> None:
    admin = admin_of(postgres, plain_url)
    run(admin, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE nokey (id int)")
    with pytest.raises(SourceNotPermitted) as caught:
        ensure(plain_url)
    assert "p@ss" not in str(caught.value)
    script = str(caught.value).split("run:\n")[1].splitlines()
    run(admin, *script)
    prepared = ensure(plain_url)
    assert [t.name for t in prepared.tables] == ["a"]
    left = asyncio.run(setup_of(plain_url).remove())
    assert [(item.what, item.repair) for item in left] == [
        ("publication millrace_shop_1", ('DROP PUBLICATION "millrace_shop_1";',))]


def test_S10_a_role_that_may_not_replicate_is_told_the_sql(postgres: PostgresServer, plain_url: str) -> None:
    admin = admin_of(postgres, plain_url)
    run(admin, "ALTER ROLE plain NOREPLICATION", "CREATE PUBLICATION millrace_shop_1")
    with pytest.raises(SourceNotPermitted):
        asyncio.run(with_slot(setup_of(plain_url)))


# -- publication and slot ----------------------------------------------------------------------------------------------


def test_S9_a_publication_that_is_gone_is_an_error_while_the_slot_lives(swept_url: str) -> None:
    run(swept_url, "CREATE TABLE a (id int PRIMARY KEY)")
    asyncio.run(with_slot(setup_of(swept_url)))
    run(swept_url, "DROP PUBLICATION millrace_shop_1")
    with pytest.raises(PublicationMissing):
        ensure(swept_url)
    assert len(asyncio.run(setup_of(swept_url).ensure(fresh=True)).added) == 1


def test_S9_a_publication_that_was_emptied_says_which_tables_are_new_in_it(swept18_url: str) -> None:
    run(swept18_url, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    asyncio.run(with_slot(setup_of(swept18_url)))
    run(swept18_url, "ALTER PUBLICATION millrace_shop_1 DROP TABLE a, b")
    assert len(ensure(swept18_url).added) == 2


def test_S3_the_slot_is_taken_from_an_older_reader_never_from_a_newer_or_a_stranger(swept_url: str) -> None:
    async def life() -> None:
        await with_slot(setup_of(swept_url))
        async with await Database(swept_url, source="shop-1", epoch=9).connect() as connection:
            for name, epoch, yields in (("shop-1", 4, True), ("shop-1", 5, False), ("shop-2", 4, False)):
                theirs = await Database(swept_url, source=name, epoch=epoch).connect_replication()
                theirs.pgconn.send_query(b"START_REPLICATION SLOT millrace_shop_1 LOGICAL 0/0"
                                         b" (proto_version '1', publication_names 'millrace_shop_1')")
                while (state := await slot_state(connection, "millrace_shop_1")) is None or state.active_pid is None:
                    await asyncio.sleep(0.01)
                if yields:
                    await free_slot(connection, "millrace_shop_1", source="shop-1", epoch=5)
                else:
                    with pytest.raises(SlotActive, match=name):
                        await free_slot(connection, "millrace_shop_1", source="shop-1", epoch=5)
                await theirs.close()
                while (state := await slot_state(connection, "millrace_shop_1")) and state.active_pid is not None:
                    await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(life(), 30))


def test_S1_remove_ends_our_own_stream_and_names_the_slot_a_stranger_holds(swept_url: str) -> None:
    async def life() -> None:
        await with_slot(setup_of(swept_url))
        for name, removed in (("other", False), ("shop-1", True)):
            theirs = await Database(swept_url, source=name, epoch=7).connect_replication()
            theirs.pgconn.send_query(b"START_REPLICATION SLOT millrace_shop_1 LOGICAL 0/0"
                                     b" (proto_version '1', publication_names 'millrace_shop_1')")
            async with await Database(swept_url).connect() as connection:
                while (state := await slot_state(connection, "millrace_shop_1")) is None or state.active_pid is None:
                    await asyncio.sleep(0.01)
                if not removed:
                    left = await setup_of(swept_url).remove()
                    assert [item.what for item in left] == ["replication slot millrace_shop_1"]
                    assert left[0].repair == ("SELECT pg_catalog.pg_drop_replication_slot('millrace_shop_1');",)
                    await theirs.close()
                    while (state := await slot_state(connection, "millrace_shop_1")) and state.active_pid is not None:
                        await asyncio.sleep(0.01)
                    await setup_of(swept_url).ensure(fresh=True)
                else:
                    assert await setup_of(swept_url).remove() == []
                    await theirs.close()

    asyncio.run(asyncio.wait_for(life(), 30))
    assert remains(swept_url) == []


def test_S1_a_slot_of_another_database_is_neither_used_nor_dropped(postgres_18: PostgresServer) -> None:
    """Slots of all databases of a server share one space of names."""
    with database(postgres_18) as first, database(postgres_18) as second:
        asyncio.run(with_slot(setup_of(postgres_18.url(first))))
        with pytest.raises(SourceError, match=f"database {first}; give the source another slot name"):
            ensure(postgres_18.url(second))
        assert "not ours" in asyncio.run(setup_of(postgres_18.url(second)).remove())[0].reason
        assert ensure(postgres_18.url(second), slot="second").tables == ()


def test_S9_a_slot_of_another_kind_is_not_dropped(postgres_15: PostgresServer) -> None:
    with database(postgres_15) as name:
        url = postgres_15.url(name)
        run(url, "SELECT pg_create_logical_replication_slot('millrace_shop_1', 'test_decoding')")
        left = asyncio.run(setup_of(url).remove())
        assert "not ours" in left[0].reason
