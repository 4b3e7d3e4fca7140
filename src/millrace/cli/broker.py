"""`millrace broker list|remove`, over the API."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from millrace.cli.client import Api
from millrace.cli.output import Form, console, show, table_of

app = App(name="broker", help="Brokers of the cluster in --dir.")


@app.command(name="list")
def list_(*, dir: str = ".millrace", output: Annotated[Form, Parameter(alias="-o")] = "table") -> None:
    """List brokers as the controller sees them."""
    found = Api.of(dir).ask("GET", "/api/v2/brokers")
    columns = ("broker", "kafka", "liveness", "incarnation", "controller", "leads", "replicas", "rack")
    show(found, output, table_of(columns, [
        (b["id"], b["address"], b["liveness"], b["incarnation"], "yes" if b["is_controller"] else "", b["leaders"],
         b["replicas"], b["rack"]) for b in found["items"]]))


@app.command
def remove(broker: int, /, *, dir: str = ".millrace") -> None:
    """Remove a broker that is gone for good. Refused while it lives, or while partitions count it as a replica.

    Parameters
    ----------
    broker
        Number of the broker.
    dir
        Directory of the cluster.
    """
    Api.of(dir).ask("DELETE", f"/api/v2/brokers/{broker}")
    console().print(f"broker {broker} is removed")
