"""The API of a cluster, asked by commands: any broker, or for sources any capture, that answers will do. The token is
found beside the addresses, for the account that ran `up` [A10]."""

from __future__ import annotations

import copy
import http.client
import json
from typing import Any, Literal
from urllib.parse import quote

from millrace.cli.exits import BY_HTTP_STATUS, FAILED, UNREACHABLE, USAGE, CommandFailed
from millrace.cli.layout import Layout

Kind = Literal["broker", "capture"]


class Api:
    """Knows the HTTP addresses of the cluster in a directory, and its token."""

    def __init__(self, addresses: list[tuple[str, int]], *, where: str, token: str, kind: Kind = "broker") -> None:
        self._addresses = addresses
        self._token = token
        self._where = where
        self._kind = kind

    @classmethod
    def of(cls, dir: str, kind: Kind = "broker") -> Api:
        layout = Layout(dir)
        children = [child for child in layout.read_state()["children"] if child["kind"] == kind]
        if not children:
            raise CommandFailed(f"{dir}: runs without {kind}s; start it with: millrace up --{kind}s 2", UNREACHABLE)
        return cls([_address(child["http"]) for child in children if child["pid"]], where=dir,
                   token=layout.read_token(), kind=kind)

    def only(self, address: str) -> Api:
        """That process and no other."""
        one = copy.copy(self)
        one._addresses = [_address(address)]
        return one

    def ask(self, method: str, path: str, body: Any = None, *, timeout_s: float = 30.0) -> Any:
        """The body of the first answer; a refusal ends the command with the code that fits it."""
        if not self._addresses:
            raise CommandFailed(f"{self._where}: stopped; start it with: millrace up --dir {self._where}", UNREACHABLE)
        last, answered = "", False
        for host, port in self._addresses:
            try:
                status, answer = request(host, port, method, path, body, token=self._token, timeout_s=timeout_s)
            except OSError as error:
                last = last if answered else f"{host}:{port}: {error}"
                continue
            if 200 <= status < 300:
                return answer
            last, answered = said(status, answer), True
            if status not in (502, 503, 421):
                raise CommandFailed(last, BY_HTTP_STATUS.get(status, FAILED))
        if answered:
            raise CommandFailed(f"{last}; try again later, or see: millrace status", UNREACHABLE)
        raise CommandFailed(f"{self._where}: no {self._kind} answers ({last}); see: millrace status", UNREACHABLE)


def request(
    host: str, port: int, method: str, path: str, body: Any = None, *, token: str, timeout_s: float = 5.0
) -> tuple[int, Any]:
    """(status, decoded body) of one HTTP exchange; raises OSError when there was none."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, body=data, headers={"content-type": "application/json",
                                                             "authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        raw = answer.read()
        is_json = "json" in (answer.getheader("content-type") or "")
        return answer.status, json.loads(raw) if is_json and raw else raw.decode(errors="replace")
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def path_to(collection: str, name: str) -> str:
    """Path of one thing; without a name it would be the path of all of them."""
    if not name:
        noun = collection.removesuffix("s")
        raise CommandFailed(f"{noun}: the name is empty; see: millrace {noun} list", USAGE)
    return f"/api/v2/{collection}/{quote(name, safe='')}"


def said(status: int, answer: Any) -> str:
    """Why an answer is a refusal."""
    why = answer.get("error_msg", answer) if isinstance(answer, dict) else answer
    return str(why or f"HTTP status {status}")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
