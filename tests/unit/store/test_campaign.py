"""A candidate for an office beside a real process that holds it [L17, L18]."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from millrace.model.ids import ProcessIdentity
from millrace.ops.real import process_stat, read_boot_id, real_ports
from millrace.store import open_store
from millrace.store.campaign import Campaign, CampaignTimes
from millrace.store.contract import Candidate
from support_brokers import until

OFFICE = "controller"


def test_L17_a_holder_that_is_provably_gone_is_replaced_long_before_its_tenure_ends(tmp_path: Path) -> None:
    async def serve() -> str:
        await asyncio.Event().wait()
        return "never"

    async def main(child: subprocess.Popen[bytes]) -> None:
        ports = real_ports()
        store = open_store(f"sqlite:{tmp_path}/store", ports)
        stat = process_stat(child.pid)
        assert stat is not None
        holder = Candidate(1, "127.0.0.1:1", ProcessIdentity(read_boot_id(), child.pid, stat.start_time))
        await store.acquire(OFFICE, holder, 3600.0)
        times = CampaignTimes(tenure_s=7200.0, renew_s=3600.0, tick_s=0.05)
        campaign = Campaign(store, ports, times, Candidate(2, "127.0.0.1:2", ports.processes.me()), office=OFFICE,
                            serve=serve)
        campaign.start()
        await until(lambda: campaign.other is not None, "the candidate to see the holder")
        assert not campaign.holding
        child.kill()
        await until(lambda: campaign.holding, "the office to change hands")
        await campaign.stop()
        await store.close()

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        asyncio.run(main(child))
