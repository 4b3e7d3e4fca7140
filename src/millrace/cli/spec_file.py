"""A file that says what a changefeed is to be: YAML, fields as the API names them. The API judges the values."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from millrace.cli.exits import USAGE, CommandFailed

FILE_BYTES_MAX = 1 << 20


def read_spec_file(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise CommandFailed(f"--config: {path}: above {FILE_BYTES_MAX} bytes", USAGE)
        found = YAML(typ="safe").load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"--config: {path}: {getattr(error, 'strerror', None) or error}", USAGE) from None
    except YAMLError as error:
        raise CommandFailed(f"--config: {path}: {error}", USAGE) from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise CommandFailed(f"--config: {path}: holds no fields; write them as 'source: shop'", USAGE)
    return found
