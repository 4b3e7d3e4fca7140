"""`millrace alerts`: the alert rules for Prometheus that come with this version, as one file [A9]."""

from __future__ import annotations

import io
from importlib import resources

from ruamel.yaml import YAML

RULES = ".rules.yaml"


def alerts() -> None:
    """Print the alert rules for Prometheus: `millrace alerts > millrace.rules.yaml`, named under `rule_files`."""
    print(rules(), end="")


def rules() -> str:
    """All groups of all files, as one document."""
    yaml = YAML()
    yaml.width = 1 << 16
    folder = resources.files("millrace") / "alerts"
    groups = [group for file in sorted(folder.iterdir(), key=lambda file: file.name) if file.name.endswith(RULES)
              for group in yaml.load(file.read_text())["groups"]]
    out = io.StringIO()
    yaml.dump({"groups": groups}, out)
    return out.getvalue()
