"""`millrace doctor URL`: asks the database itself, no cluster needed [S10]."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from millrace.cli.exits import UNHEALTHY, UNREACHABLE
from millrace.cli.output import Form, console, show, table_of
from millrace.core.sources.registry import check_source_name
from millrace.model.sources import SourceSpec
from millrace.ops.secrets import ANYWHERE, Secret

# What cannot be guarded against [S11].
UNLOGGED = (
    "while a table is carried, ALTER TABLE … SET UNLOGGED on it fails, since it is in the source's publication; in one "
    "transaction it works: BEGIN; ALTER PUBLICATION millrace_SOURCE DROP TABLE …; ALTER TABLE … SET UNLOGGED; COMMIT; "
    "once it is LOGGED again it is published and copied by itself")
NO_KEY = ("after the key of a carried table is dropped, its UPDATE and DELETE fail until it has one again or is taken "
          "out of the publication")
WHILE_CARRIED = (UNLOGGED, NO_KEY)


def doctor(
    url: str,
    *,
    tables: Annotated[list[str] | None, Parameter(negative="", consume_multiple=False)] = None,
    name: str = "",
    output: Annotated[Form, Parameter(alias="-o")] = "table",
) -> None:
    """Check whether a database is fit to be a source, and print the SQL that repairs what is not. Exit 10: it is not;
    6: it could not be asked; 2: that is no URL of a database.

    Parameters
    ----------
    url
        The database, as postgresql://user@host/database; the password best by reference: ${env:NAME}, ${file:/path}.
    tables
        Which tables are to be carried: `public.*`, `!public.tmp_*`, may be given several times. Default: all.
    name
        Name the source has, or is going to have: slot and publication are named after it.
    output
        Form of the output.
    """
    # The database driver: other commands start faster without it.
    from millrace.source.database.connect import check_url
    from millrace.source.database.doctor import diagnose

    Secret.expand(url, places=ANYWHERE)     # a reference that leads nowhere is wrong use and says nothing of a database
    check_url(url, ANYWHERE)                # nor does a text that is no URL
    rules = tuple(tables or ("*.*",))
    source = _source(name, url, rules) if name else None
    findings = asyncio.run(diagnose(url, rules, source))
    errors = [finding for finding in findings if finding.severity == "error"]
    body: dict[str, Any] = {"total": len(findings), "healthy": not errors, "items": [asdict(f) for f in findings],
                            "notes": list(WHILE_CARRIED)}
    show(body, output, table_of(("", "check", "finding"), [(f.severity, f.code, f.what) for f in findings]))
    if output == "table":
        _print_repairs(body)
    if any(finding.code == "connect" for finding in errors):
        raise SystemExit(UNREACHABLE)
    if errors:
        raise SystemExit(UNHEALTHY)


def _source(name: str, url: str, rules: tuple[str, ...]) -> SourceSpec:
    check_source_name(name)
    return SourceSpec(name=name, url=url, tables=rules)


def _print_repairs(body: dict[str, Any]) -> None:
    out = console()
    repairs = [item for item in body["items"] if item["repair"]]
    if not body["total"]:
        out.print("nothing to repair: this database is fit to be a source")
    for item in repairs:
        out.print(f"\n-- {item['code']}{' (counts after a restart of the server)' if item['restart'] else ''}",
                  markup=False)
        for statement in item["repair"]:
            out.print(statement, markup=False, soft_wrap=True, highlight=False)
    for note in WHILE_CARRIED:
        out.print(f"\nnote: {note}", markup=False, soft_wrap=True, highlight=False)
