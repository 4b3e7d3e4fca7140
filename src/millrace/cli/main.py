"""`millrace noun verb`: the command line. Every error is one line on standard error and an exit code [A2]; where it is
about a place in a text, the text and a mark under the place follow."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import cyclopts
from cyclopts import App

from millrace import __version__
from millrace.cli import (
    alerts,
    bench,
    broker,
    capture,
    changefeed,
    demo,
    doctor,
    group,
    prove,
    quarantine,
    serve,
    source,
    spark,
    status,
    table,
    token,
    topic,
    up,
)
from millrace.cli.exits import USAGE, CommandFailed, code_of
from millrace.errors import MillraceError

app = App(
    name="millrace",
    help="A replicated log that speaks the Kafka protocol. Start with: millrace demo",
    version=__version__,
    result_action="return_value",
)
app.command(up.up)
app.command(up.down)
app.command(status.status)
app.command(token.token)
app.command(alerts.alerts)
app.command(serve.app)
app.command(broker.app)
app.command(topic.app)
app.command(group.app)
app.command(capture.app)
app.command(source.app)
app.command(changefeed.app)
app.command(spark.app)
app.command(table.app)
app.command(quarantine.app)
app.command(doctor.doctor)
app.command(demo.demo)
app.command(prove.prove)
app.command(bench.app)


def main() -> None:
    # A demo or a benchmark that is told to end takes its cluster with it; servers set handlers of their own.
    signal.signal(signal.SIGTERM, _end)
    sys.exit(run(sys.argv[1:]))


def _end(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def run(arguments: list[str]) -> int:
    """Exit code of one command line."""
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        return _complain(str(error), USAGE)
    except (CommandFailed, MillraceError) as error:
        return _complain(str(error), code_of(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read us has seen enough; what is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0


def _complain(message: str, code: int) -> int:
    *lines, mark = message.split("\n")
    shown = "\n".join(lines) if lines and mark and not mark.strip(" ^") else ""
    why, _, text = shown.partition("\n")
    print(f"millrace: {' '.join((why or message).split())}", file=sys.stderr)
    if text:
        print(f"{text}\n{mark}", file=sys.stderr)
    return code
