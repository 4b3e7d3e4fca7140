"""Secrets: values that work and are never shown.

In: text, or a reference `${env:NAME}` / `${file:/path}`, also inside a URL or a connection string. Out: a `Secret`
whose every printed form is a mask; `redact`, which masks secrets inside values that are about to be logged or answered;
`has_clear_password`, by which what would be stored is refused [A8].
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from millrace.errors import ConfigError

MASK = "********"

REMEDY = "write it as a reference: ${env:NAME} or ${file:/path}"

_REF = r"\$\{(?:env|file):[^}]+\}"
_REFERENCE = re.compile(r"^\$\{(?P<kind>env|file):(?P<name>[^}]+)\}$")
_ANY_REFERENCE = re.compile(_REF)
# The last @ of the word ends a password: one that holds an @ itself must not show its rest.
_URL_PASSWORD = re.compile(rf"(?P<before>[a-z][a-z0-9+.-]*://[^/@:\s]*:)(?!{_REF}@)\S+(?=@)", re.IGNORECASE)
_KEY_PASSWORD = re.compile(
    rf"(?P<before>password\s*=\s*)(?!{_REF}(?:[\s&]|$))(?:'(?:[^'\\]|\\.)*'?|[^\s&]+)", re.IGNORECASE)
# What follows the address of a Spark Connect server: whoever knows a session's name can join it, or end it.
_SPARK_PARAMETERS = re.compile(r"(?P<before>sc://[^\s;]*)(?:;[^\s;:=]+=[^\s;:]*)+")
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
                raise ConfigError(f"${{env:{name}}}: the environment variable is not set where it is resolved; set it "
                                  "there")
            return cls(environ[name])
        try:
            with open(name, encoding="utf-8") as file:
                return cls(file.read().rstrip("\r\n"))
        except OSError as error:
            raise ConfigError(f"${{file:{name}}}: {error.strerror}; write the secret there") from None

    @classmethod
    def expand(cls, text: str, environ: Mapping[str, str] = os.environ) -> Secret:
        """`text` with every reference in it replaced; inside a longer text as that text needs it quoted."""
        if _REFERENCE.match(text):
            return cls.resolve(text, environ)
        is_url = "://" in text

        def value_of(reference: re.Match[str]) -> str:
            value = cls.resolve(reference[0], environ).reveal()
            if is_url:
                return quote(value, safe="")
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

        return cls(_ANY_REFERENCE.sub(value_of, text))

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


def mask(text: str) -> str:
    """Passwords inside URLs and connection strings masked, parameters of Spark addresses left out; references stay,
    they show nothing."""
    text = _SPARK_PARAMETERS.sub(r"\g<before>", text)
    return _KEY_PASSWORD.sub(rf"\g<before>{MASK}", _URL_PASSWORD.sub(rf"\g<before>{MASK}", text))


def without_references(text: str, stand_in: str = "x") -> str:
    """The shape of a text whose references nobody resolves yet; empty where the whole text is one."""
    return "" if _REFERENCE.match(text) else _ANY_REFERENCE.sub(stand_in, text)


def has_clear_password(text: str) -> bool:
    """A URL or connection string that holds a password itself, not a reference to one."""
    return bool(_URL_PASSWORD.search(text) or _KEY_PASSWORD.search(text))


def redact(value: Any, name: str = "") -> Any:
    """`value` with everything secret masked: secrets, fields named like one, passwords inside URLs."""
    if isinstance(value, Secret) or (_SECRET_NAME.search(name) and value not in (None, "")):
        return MASK
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    return value
