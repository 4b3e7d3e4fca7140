"""Prove, a private call: a connection of our own client shows that it holds the cluster's secret [A10].

    Prove(OPENING) ─▶ CHALLENGE      Prove(ANSWER) ─▶ WELCOME: from here on the connection's principal is OWN

In: messages of `wire.proof`. Out: the answers; a refusal closes the connection. Two calls when a connection is made,
nothing for each later request.
"""

from __future__ import annotations

import structlog

from millrace.errors import Malformed, SecretNotProved
from millrace.log.kafka.client import Client
from millrace.log.kafka.principal import OWN
from millrace.log.kafka.shell import Service
from millrace.ops.cluster_secret import Key
from millrace.wire.kafka import apis, hot
from millrace.wire.kafka.codec import APIS, decode
from millrace.wire.proof import NONCE_BYTES, Acceptor, ProofRefused, Side

log = structlog.get_logger(__name__)

API = APIS[apis.Key.PROVE]


def handle(service: Service, client: Client, header: hot.Header, frame: memoryview) -> None:
    message = bytes(decode(API, header.version, frame[header.body :])["message"])
    if client.principal.is_own or service.options.key is None:
        raise Malformed("nothing to prove here")
    if client.proof is None:
        client.proof = _acceptor(service, service.options.key)
    slot = client.slot()
    try:
        answer = client.proof.receive(message)
    except (ProofRefused, Malformed) as error:
        service.stats.proofs_refused += 1
        log.warning("connection closed: the secret was not proved", peer=client.conn.peername, why=str(error))
        told = error.answer if isinstance(error, ProofRefused) else b""
        slot.answer([apis.encode_response(API, header.version, header.correlation, {
            "error_code": SecretNotProved.kafka_code, "error_message": str(error), "message": told})])
        client.close()
        return
    if client.proof.proved:
        client.principal, client.proof = OWN, None
    slot.answer([apis.encode_response(API, header.version, header.correlation, {"message": answer})])


def _acceptor(service: Service, key: Key) -> Acceptor:
    shell = service.shell
    nonce = shell.ports.random.uuid().bytes + shell.ports.random.uuid().bytes
    assert len(nonce) == NONCE_BYTES
    return Acceptor(key.reveal(), apis.PROOF_PURPOSE, Side(shell.config.cluster_id, shell.id), nonce, any_cluster=True)
