"""Whose store this is: the first process writes its cluster's id, every later one compares [L29].

In: a store and the id of the cluster this process belongs to. Out: nothing, or the error with both ids. Promise: a
process of another cluster is refused before it stands for an office or registers. The id is the only record of the
office `cluster`, so the store's own rules decide between two first processes.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import structlog

from millrace.errors import ConfigError, Damaged, Deposed, IndexConflict, OfficeHeld, StoreUnreachable
from millrace.store.contract import Candidate, Store

log = structlog.get_logger(__name__)

OFFICE = "cluster"
CLAIM_S = 2.0            # how long the office is held while the id is written
AGAIN_S = 0.2


async def claim(store: Store, cluster_id: UUID, me: Candidate, *, url: str) -> None:
    """Waits for a store that does not answer: whoever starts a process may stop it meanwhile."""
    waits = False
    while True:
        try:
            owner = await _owner(store) or await _write(store, cluster_id, me)
        except (OfficeHeld, Deposed, IndexConflict):
            owner = None                    # another process writes it at this moment
        except StoreUnreachable as error:
            owner = None
            if not waits:
                log.warning("waits for the store", why=str(error))
                waits = True
        if owner is not None:
            break
        await asyncio.sleep(AGAIN_S)
    if owner != cluster_id:
        raise ConfigError(
            f"store.url: {url} belongs to cluster {owner}, this process is of cluster {cluster_id}; "
            "give each cluster a store of its own, or correct cluster.id"
        )


async def _owner(store: Store) -> UUID | None:
    found = await store.read(OFFICE, 0, 1)
    if not found:
        return None
    try:
        return UUID(found[0][1].decode())
    except ValueError as error:
        raise Damaged(f"store: the cluster's id does not read: {error}") from error


async def _write(store: Store, cluster_id: UUID, me: Candidate) -> UUID | None:
    token = await store.acquire(OFFICE, me, CLAIM_S)
    try:
        await store.append(OFFICE, token, 0, [str(cluster_id).encode()])
    finally:
        await store.release(OFFICE, token)
    return await _owner(store)
