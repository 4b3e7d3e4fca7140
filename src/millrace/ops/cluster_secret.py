"""The cluster's secret: one file that every process of a cluster reads, and one key per purpose made from it [A10].

In: the path of the file (`cluster.secret_file`, mode 0600; `millrace up` makes it). Out: a `ClusterSecret`, which gives
each boundary a key of its own, so that the token of HTTP opens no link and a worker of Spark never holds the secret.
Promise: a file that others can read, or that is missing or short, is refused with a line that says what to do.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from typing import Any

import msgspec

from millrace.errors import ConfigError
from millrace.ops.secrets import MASK

SECRET_BYTES = 32
TEXT_MIN = 32            # characters; a word that a person thinks of is no secret

HTTP = "http"            # bearer token of the API
PEER = "http peer"       # proof of our own processes when they ask each other over HTTP
LINK = "link"            # links between our own processes
KAFKA = "kafka"          # private calls and internal topics on a broker's Kafka port
SPARK = "spark"          # token of the Spark Connect server


class ClusterSecret:
    """The secret itself is never shown; `key` and `token` are what other parts get."""

    __slots__ = ("_value",)

    def __init__(self, text: str) -> None:
        self._value = text.encode()

    def key(self, purpose: str) -> bytes:
        """32 bytes for one purpose; from a key neither the secret nor another purpose's key can be found."""
        return hmac.new(self._value, f"millrace {purpose} v1".encode(), hashlib.sha256).digest()

    def proof_key(self, purpose: str) -> Key:
        return Key(self.key(purpose))

    def token(self, purpose: str) -> str:
        return self.key(purpose).hex()

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __reduce__(self) -> Any:
        raise TypeError("the cluster's secret is not to be copied out of its process")


class Key(msgspec.Struct, frozen=True, array_like=True):
    """The key of one purpose, for the part that proves it. Unlike the secret it may be copied, to a worker that needs
    it, inside the bytes of its task; like the secret it is never shown."""

    value: bytes

    def reveal(self) -> bytes:
        return self.value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK


def load(path: str) -> ClusterSecret:
    try:
        with open(path, encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read().strip()
    except FileNotFoundError:
        raise ConfigError(f"cluster.secret_file: {path}: no such file; copy it from another machine of the cluster, or "
                          f"make one: (umask 077; openssl rand -hex {SECRET_BYTES} > {path})") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"cluster.secret_file: {path}: {why}; use the account that the cluster runs as") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"cluster.secret_file: {path}: other users may read it (mode {stat.S_IMODE(mode):04o}); "
                          f"make it private: chmod 600 {path}")
    if len(text) < TEXT_MIN:
        raise ConfigError(f"cluster.secret_file: {path}: {len(text)} characters are too few for a secret; write at "
                          f"least {TEXT_MIN}: openssl rand -hex {SECRET_BYTES} > {path}")
    return ClusterSecret(text)


def create(path: str) -> None:
    """A new secret at `path`, private from its first byte; one that is there already stays."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(SECRET_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
