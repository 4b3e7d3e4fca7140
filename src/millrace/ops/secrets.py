"""Secrets: values that work and are never shown.

In: text, or a reference `${env:NAME}` / `${file:/path}`. Out: a `Secret` whose every printed form is a mask, and
`redact`, which masks secrets inside values that are about to be logged or answered [A8].
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from millrace.errors import ConfigError

MASK = "********"

_REFERENCE = re.compile(r"^\$\{(?P<kind>env|file):(?P<name>[^}]+)\}$")
_URL_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^/@:\s]*:)[^@/\s]+(?=@)", re.IGNORECASE)
_SECRET_NAME = re.compile(r"password|passwd|secret|token_value|api_key|credential", re.IGNORECASE)


class Secret:
    """Holds a value that only `reveal()` shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @classmethod
    def resolve(cls, text: str, environ: Mapping[str, str] = os.environ) -> Secret:
        """The secret that `text` is or refers to; a reference that leads nowhere is a configuration error."""
        reference = _REFERENCE.match(text)
        if reference is None:
            return cls(text)
        name = reference["name"]
        if reference["kind"] == "env":
            if name not in environ:
                raise ConfigError(f"${{env:{name}}}: the environment variable is not set; set it")
            return cls(environ[name])
        try:
            with open(name, encoding="utf-8") as file:
                return cls(file.read().rstrip("\r\n"))
        except OSError as error:
            raise ConfigError(f"${{file:{name}}}: {error.strerror}; write the secret there") from None

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> Any:
        raise TypeError("a secret is not to be copied out of its process")


def redact(value: Any, name: str = "") -> Any:
    """`value` with everything secret masked: secrets, fields named like one, passwords inside URLs."""
    if isinstance(value, Secret) or (_SECRET_NAME.search(name) and value not in (None, "")):
        return MASK
    if isinstance(value, str):
        return _URL_PASSWORD.sub(rf"\g<before>{MASK}", value)
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    return value
