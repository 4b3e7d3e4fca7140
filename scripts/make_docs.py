"""Writes the reference pages that are made from the code: docs/configuration.md and docs/reference.md (`make docs`).

A test compares the files with what this makes, so a key, metric, route, error or exit code cannot go undocumented.
"""

from __future__ import annotations

import os
import sys

from starlette.routing import Route

from millrace import errors
from millrace.api.app import ROUTES
from millrace.api.capture_app import CAPTURE_ROUTES
from millrace.api.problems import HTTP_CODES
from millrace.cli import exits
from millrace.ops import config
from millrace.ops.metrics import BROKER_METRICS, CAPTURE_METRICS, Measure
from millrace.sink import uri

DOCS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs")

CONFIGURATION = """\
# Configuration

*Made by `make docs` from `src/millrace/ops/config.py`.*

One YAML file, `millrace.yaml`. It is strict: an unknown key or a wrong type stops the process with exit code 2 and one
line that names the key, before anything is written. Every key has a default except `cluster.id`. `millrace up` makes a
file in its directory at the first start and never changes it again.

Every key can be overridden by an environment variable `MILLRACE_SECTION__KEY`, for example
`MILLRACE_BROKER__FLUSH=os`. Variables are as strict as the file.

```yaml
cluster:
  id: 7b0f4a51-8c1b-4a43-9d0f-2f6f1f3f8e0a
  dir: /var/lib/millrace
store:
  url: etcd://10.0.0.5:2379/millrace
broker:
  host: 0.0.0.0
  advertised_host: broker-0.example
```
"""

REFERENCE = """\
# Reference

*Made by `make docs` from the code.*
"""


def configuration() -> str:
    parts = [CONFIGURATION]
    for section in config.sections():
        parts.append(f"\n## {section}\n\n| key | default | value | meaning |\n|---|---|---|---|\n")
        for of, key, field in config.all_keys():
            if of == section:
                parts.append(f"| `{key}` | {_default(field.default)} | {config.rule(of, key)} | "
                             f"{config.description(of, key)} |\n")
    return "".join(parts)


def reference() -> str:
    return "".join([
        REFERENCE, _routes("a broker", ROUTES), _routes("a capture", CAPTURE_ROUTES), _sink_keys(), _exits(), _errors(),
        _metrics("a broker", BROKER_METRICS), _metrics("a capture", CAPTURE_METRICS),
    ])


def _routes(of: str, routes: list[Route]) -> str:
    rows = []
    for route in routes:
        methods = ", ".join(sorted((route.methods or set()) - {"HEAD"}))
        said = " ".join((route.endpoint.__doc__ or "").split())
        rows.append(f"| {methods} | `{route.path}` | {said} |\n")
    return f"\n## HTTP routes of {of}\n\n| method | path | |\n|---|---|---|\n" + "".join(rows)


def _sink_keys() -> str:
    rows = []
    for name, key in uri.KEYS.items():
        only = f"; with {' and '.join(uri.ONLY[name])} only" if name in uri.ONLY else ""
        rows.append(f"| `{name}` | {key.default} | {key.value} | {key.meaning}{only} |\n")
    head = ("\n## Keys of a sink URI\n\n"
            "`kafka:?key=value&key=value`: topics of our own log, which every Kafka client reads. In values `&` and\n"
            "`%` are written `%26` and `%25`.\n\n")
    return head + "| key | default | value | meaning |\n|---|---|---|---|\n" + "".join(rows)


def _exits() -> str:
    rows = [f"| {code} | {meaning} |\n" for code, meaning in exits.MEANING.items()]
    return "\n## Exit codes of commands\n\n| code | meaning |\n|---:|---|\n" + "".join(rows)


def _errors() -> str:
    rows = []
    for code, kind in errors.all_errors().items():
        rows.append(f"| `{code}` | {kind.http_status} | {kind.kafka_code} | {'yes' if kind.retriable else 'no'} |\n")
    rows += [f"| `{code}` | {status} | -1 | no |\n" for status, code in HTTP_CODES.items()]
    rows.sort(key=lambda row: row.split("`")[1])
    head = "\n## Error codes\n\n| code | HTTP status | Kafka code | retriable |\n|---|---:|---:|---|\n"
    return head + "".join(rows)


def _metrics(of: str, metrics: dict[str, Measure]) -> str:
    rows = []
    for name, measure in metrics.items():
        labels = ", ".join(f"`{label}`" for label in measure.labels)
        rows.append(f"| `{name}` | {measure.kind} | {labels} | {measure.help} |\n")
    head = f"\n## Metrics of {of}\n\nBeside these, the process's own CPU, memory and descriptors.\n\n"
    return head + "| metric | kind | labels | meaning |\n|---|---|---|---|\n" + "".join(rows)


def _default(value: object) -> str:
    if value is None:
        return "none"
    if value in ("", ()):
        return "empty"
    if isinstance(value, tuple):
        return f"`{', '.join(map(str, value))}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


PAGES = {"configuration.md": configuration, "reference.md": reference}


def main() -> None:
    for name, make in PAGES.items():
        with open(os.path.join(DOCS, name), "w", encoding="utf-8") as file:
            file.write(make())
        sys.stdout.write(f"wrote docs/{name}\n")


if __name__ == "__main__":
    main()
