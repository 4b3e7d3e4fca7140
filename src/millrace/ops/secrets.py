"""Secrets: values that work and are never shown.

In: text, or a reference `${env:NAME}` / `${file:/path}`, also inside a URL or a connection string; and the places where
references may lead, which the operator names and no caller of the API [A10]. Out: a `Secret` whose every printed form
is a mask; `redact`, which masks secrets inside values that are about to be logged or answered; `has_clear_password`, by
which what would be stored is refused [A8].
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from millrace.errors import ConfigError, ReferenceRefused
from millrace.limits import SECRET_FILE_BYTES_MAX

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


class Places(msgspec.Struct, frozen=True):
    """Where references may lead: files below `dirs`, variables that `env` names (with a `*` at its end: that begin so).
    By default nowhere."""

    dirs: tuple[str, ...] = ()
    env: tuple[str, ...] = ()

    def check(self, text: str) -> None:
        """ReferenceRefused: some reference in `text` leads elsewhere. Whether anything is there plays no part."""
        for reference in _ANY_REFERENCE.finditer(text):
            kind, _, name = reference[0][2:-1].partition(":")
            if kind == "env":
                self.check_variable(name)
            else:
                self.path_of(name)

    def check_variable(self, name: str) -> None:
        if not any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in self.env):
            raise ReferenceRefused(f"${{env:{name}}}: the operator has not named this variable for secrets; use one of "
                                   f"{', '.join(self.env) or 'none'}, or add it to capture.secret_env")

    def path_of(self, name: str) -> str:
        """The file itself, whatever links lead to it."""
        real = os.path.realpath(name) if os.path.isabs(name) and "\0" not in name else ""
        inside = tuple(os.path.join(os.path.realpath(one), "") for one in self.dirs)
        if not real.startswith(inside):
            raise ReferenceRefused(f"${{file:{name}}}: not inside a directory that the operator has named for secrets; "
                                   f"write it into {' or '.join(self.dirs) or 'one'}, or set capture.secret_dirs")
        return real


NOWHERE = Places()
ANYWHERE = Places(dirs=("/",), env=("*",))      # for a person at the command line, with what that account may read


class Secret:
    """Holds a value that only `reveal()` shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    @classmethod
    def resolve(cls, text: str, environ: Mapping[str, str] = os.environ, *, places: Places = NOWHERE) -> Secret:
        """The secret that `text` is or refers to. ConfigError: a reference leads nowhere, or where it may not."""
        reference = _REFERENCE.match(text)
        if reference is None:
            return cls(text)
        name = reference["name"]
        if reference["kind"] == "env":
            places.check_variable(name)
            if name not in environ:
                raise ConfigError(f"${{env:{name}}}: the environment variable is not set where it is resolved; set it "
                                  "there")
            return cls(environ[name])
        return cls(_read(places.path_of(name), name))

    @classmethod
    def expand(cls, text: str, environ: Mapping[str, str] = os.environ, *, places: Places = NOWHERE) -> Secret:
        """`text` with every reference in it replaced; inside a longer text as that text needs it quoted."""
        if _REFERENCE.match(text):
            return cls.resolve(text, environ, places=places)
        is_url = "://" in text

        def value_of(reference: re.Match[str]) -> str:
            value = cls.resolve(reference[0], environ, places=places).reveal()
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


def _read(path: str, name: str) -> str:
    """A file's text; errors name the file and show nothing of it."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"${{file:{name}}}: no plain file; write the secret into one")
            data = file.read(SECRET_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"${{file:{name}}}: {error.strerror}; write the secret there") from None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"${{file:{name}}}: not UTF-8 text; write the secret there") from None
    if len(data) > SECRET_FILE_BYTES_MAX:
        raise ConfigError(f"${{file:{name}}}: above {SECRET_FILE_BYTES_MAX} bytes; write the secret alone there")
    return text.rstrip("\r\n")


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
