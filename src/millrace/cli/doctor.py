"""`millrace doctor URL`: asks the database itself, no cluster needed [S10]."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from millrace.cli.exits import UNHEALTHY, UNREACHABLE
from millrace.cli.output import Form, console, show, table_of
from millrace.ops.secrets import Secret


def doctor(
    url: str,
    *,
    tables: Annotated[list[str] | None, Parameter(negative="", consume_multiple=False)] = None,
    output: Annotated[Form, Parameter(alias="-o")] = "table",
) -> None:
    """Check whether a database is fit to be a source, and print the SQL that repairs what is not. Exit 10: it is not;
    6: it could not be asked.

    Parameters
    ----------
    url
        The database, as postgresql://user@host/database; the password best by reference: ${env:NAME}, ${file:/path}.
    tables
        Which tables are to be carried: `public.*`, `!public.tmp_*`, may be given several times. Default: all.
    output
        Form of the output.
    """
    from millrace.source.database.doctor import diagnose  # the database driver: other commands start faster without it

    Secret.expand(url)      # a reference that leads nowhere is wrong use, and nothing about the database
    findings = asyncio.run(diagnose(url, tuple(tables or ("*.*",))))
    errors = [finding for finding in findings if finding.severity == "error"]
    body: dict[str, Any] = {"total": len(findings), "healthy": not errors, "items": [asdict(f) for f in findings]}
    show(body, output, table_of(("", "check", "finding"), [(f.severity, f.code, f.what) for f in findings]))
    if output == "table":
        _print_repairs(body)
    if any(finding.code == "connect" for finding in errors):
        raise SystemExit(UNREACHABLE)
    if errors:
        raise SystemExit(UNHEALTHY)


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
