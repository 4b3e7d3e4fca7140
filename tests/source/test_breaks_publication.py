"""A publication goes, loses a table or lets less through: no gap stays, and what somebody must do is said [S9, S11]."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from millrace.errors import InvalidRequest
from support_breaks import TABLE, caught_up, look, raised, rig_of
from support_cluster import Cluster
from support_postgres import run
from support_reader import Life, Rig


@pytest.fixture
def rig(broker: Cluster, pg18_url: str, tmp_path: Path) -> Rig:
    return rig_of(broker, pg18_url, tmp_path)


@pytest.fixture
def rig_both(broker: Cluster, pg_url: str, tmp_path: Path) -> Rig:
    """On 15 and on 18: they differ in what a missing publication means."""
    return rig_of(broker, pg_url, tmp_path)


def test_S9_the_publication_is_dropped_while_the_reader_runs(rig_both: Rig) -> None:
    rig = rig_both
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        rig.verify(reader)
        run(rig.url, f"DROP PUBLICATION millrace_{rig.name}", "INSERT INTO t VALUES (98, 'unpublished')",
            "DELETE FROM t WHERE id < 5")
        reader.wait(lambda s: s.generation == 2, "the generation is raised")
        run(rig.url, "INSERT INTO t VALUES (99, 'new')")
        rig.verify(reader)
        assert raised(reader).startswith("publication_missing: ")
        assert f"millrace_{rig.name}" in raised(reader)


@pytest.mark.parametrize("back", [False, True], ids=["gone", "made-again"])
def test_S9_the_publication_is_dropped_while_nobody_reads(rig_both: Rig, back: bool) -> None:
    """Made again by somebody: nothing shows the gap but the stream itself."""
    rig = rig_both
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        caught_up(rig, reader)
    run(rig.url, f"DROP PUBLICATION millrace_{rig.name}", "INSERT INTO t VALUES (98, 'unpublished')",
        "DELETE FROM t WHERE id < 5")
    if back:
        run(rig.url, f"CREATE PUBLICATION millrace_{rig.name} FOR TABLE t WITH (publish_via_partition_root)",
            "INSERT INTO t VALUES (99, 'published')")
    with rig.reader() as reader:
        reader.wait(lambda s: s.generation == 2, "the generation is raised")
        rig.verify(reader)
        assert raised(reader).startswith("publication_missing: ")


@pytest.mark.parametrize(("running", "back"), [
    pytest.param(True, True, id="running-out-and-in"), pytest.param(False, True, id="stopped-out-and-in"),
    pytest.param(False, False, id="stopped-out", marks=pytest.mark.long)])
def test_S9_a_table_is_taken_out_of_the_publication(rig: Rig, running: bool, back: bool) -> None:
    """It is put in again and owed a copy; the generation stays, other tables are not touched."""
    run(rig.url, *TABLE, "CREATE TABLE other (id int PRIMARY KEY)")
    with contextlib.ExitStack() as lives:
        reader = lives.enter_context(rig.reader())
        rig.verify(reader)
        if not running:
            lives.close()
        publication = f"ALTER PUBLICATION millrace_{rig.name}"
        run(rig.url, f"{publication} DROP TABLE t", "INSERT INTO t VALUES (98, 'unpublished')",
            "DELETE FROM t WHERE id < 5", *([f"{publication} ADD TABLE t"] if back else []),
            "INSERT INTO t VALUES (99, 'new')")
        if running:
            run(rig.url, "CREATE TABLE wake (id int PRIMARY KEY)")       # it looks at once, not in some seconds
        else:
            reader = lives.enter_context(rig.reader())
        reader.wait(lambda s: len([c for c in s.copies if c.kind == "watermark"]) == 1, "a copy of t alone")
        rig.verify(reader)
        assert reader.status.generation == 1


def test_S9_a_publication_that_somebody_narrows_is_said_and_made_good_for(rig: Rig) -> None:
    publication = f"ALTER PUBLICATION millrace_{rig.name}"
    run(rig.url, *TABLE)
    with rig.reader() as reader:
        rig.verify(reader)
        run(rig.url, f"{publication} SET (publish = 'insert')", "DELETE FROM t WHERE id < 5")
        look(rig, 1)
        reader.wait(lambda s: "does not publish update, delete, truncate" in s.warnings.get("setup", ""), "the warning")
        assert "ALTER PUBLICATION" in reader.status.warnings["setup"]
        run(rig.url, f"{publication} SET (publish = 'insert, update, delete, truncate')",
            f"{publication} SET TABLE t WHERE (id < 100), look_1", "INSERT INTO t VALUES (101, 'left out')")
        look(rig, 2)
        reader.wait(lambda s: "only some rows or columns of public.t" in s.warnings.get("setup", ""), "the warning")
        run(rig.url, f"{publication} DROP TABLE t", "INSERT INTO t VALUES (102, 'unpublished')")
        look(rig, 3)
        reader.wait(lambda s: "setup" not in s.warnings, "whole again")
        rig.verify(reader)
        assert reader.status.generation == 1


def test_S9_S11_a_table_that_may_not_be_published_is_said_with_its_sql(rig: Rig) -> None:
    """Emptied by somebody, and this role may not put the table in again: a state, and what the owner runs."""
    role = f"plain_{rig.name}"
    run(rig.url, f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'", *TABLE, f"GRANT SELECT ON t TO {role}",
        f"CREATE PUBLICATION millrace_{rig.name} FOR TABLE t WITH (publish_via_partition_root)")
    try:
        host = rig.url.rpartition("@")[2]
        plain = Rig(rig.bootstrap, f"postgresql://{role}:x@{host}", rig.directory, name=rig.name, partitions=2)
        with plain.reader() as reader:
            plain_caught_up(rig, reader)
        run(rig.url, f"ALTER PUBLICATION millrace_{rig.name} DROP TABLE t", "INSERT INTO t VALUES (98, 'unpublished')")
        with plain.reader() as reader:
            reader.wait(lambda s: s.warnings.get("table public.t"), "the warning")
            said = reader.status.warnings["table public.t"]
            assert "this role must own it" in said
            assert f'ALTER PUBLICATION "millrace_{rig.name}" ADD TABLE' in said
            assert [table.state for table in reader.tables] == ["refused"]
            with pytest.raises(InvalidRequest, match="is not carried, so a copy would go stale: this role must own it"):
                reader.call(reader.copy_table("public.t"))
        run(rig.url, said.partition("; ")[2], "INSERT INTO t VALUES (99, 'new')")
        with plain.reader() as reader:
            reader.wait(lambda _: [table.state for table in reader.tables] == ["streaming"], "carried again", 30)
            plain_caught_up(rig, reader)
            rig.verify(reader)
            run(rig.url, f"DROP PUBLICATION millrace_{rig.name}", "INSERT INTO t VALUES (100, 'unpublished')")
            status = reader.wait(lambda s: s.state == "failed", "only somebody else can make one")
            assert "millrace doctor" in status.next_step
            run(rig.url, *re.findall("CREATE PUBLICATION.*?;|ALTER PUBLICATION.*?;", status.why))
            reader.wait(lambda s: s.generation == 2, "the generation is raised")
            rig.verify(reader)
    finally:
        run(rig.url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def plain_caught_up(rig: Rig, reader: Life) -> None:
    lsn = rig.lsn()
    reader.wait(lambda s: s.resolved >= lsn, "what was written is resolved")
