"""How a process of the cluster proves itself to another over HTTP, without showing a key [A10].

In: the key of that purpose (`ops.cluster_secret.PEER`) and the request. Out: the value of its Authorization header, and
whether such a value holds. Promise: the proof covers method, address, target, body and whether the request is passed on
for somebody else, so it is good for that request at that address only, and for `WINDOW_S`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import NamedTuple

SCHEME = "Millrace-Peer"
WINDOW_S = 300                     # how far the clocks of two machines may be apart
FORWARDED = "x-millrace-forwarded"  # passed on for a caller whom the sender has checked


class Sent(NamedTuple):
    """A request as it is on the wire. `address`: its Host header; `forwarded`: its header of that name."""

    method: str
    address: str
    target: str
    body: bytes = b""
    forwarded: str = ""


def prove(key: bytes, sent: Sent, now_s: float) -> str:
    at, nonce = str(int(now_s)), secrets.token_hex(16)
    return f"{SCHEME} {at} {nonce} {_mac(key, sent, at, nonce)}"


def is_proved(key: bytes, sent: Sent, value: str, now_s: float) -> bool:
    words = value.split(" ")
    if not key or len(words) != 4 or words[0] != SCHEME:
        return False
    _, at, nonce, mac = words
    is_fresh = at.isascii() and at.isdigit() and len(at) < 15 and abs(now_s - int(at)) <= WINDOW_S
    return hmac.compare_digest(_mac(key, sent, at, nonce).encode(), mac.encode()) and is_fresh


def _mac(key: bytes, sent: Sent, at: str, nonce: str) -> str:
    digest = hashlib.sha256(sent.body).hexdigest()
    parts = (SCHEME, at, nonce, sent.method, sent.address, sent.target, sent.forwarded, digest)
    return hmac.new(key, "\n".join(parts).encode(), hashlib.sha256).hexdigest()
