"""`millrace spark`: the Spark Connect server beside a cluster of `millrace up`."""

from __future__ import annotations

from cyclopts import App

from millrace.cli.exits import NOT_FOUND, CommandFailed
from millrace.cli.layout import Layout
from millrace.ops import cluster_secret
from millrace.ops import config as configuration
from millrace.pipeline import server

app = App(name="spark", help="The Spark Connect server that `millrace up` starts.")


@app.command
def url(*, dir: str = ".millrace") -> None:
    """Print the address of the Spark Connect server with its token, for `SPARK_REMOTE` or `builder.remote(...)`.
    Whoever has it runs code as the account of the cluster.

    Parameters
    ----------
    dir
        Directory of the cluster.
    """
    layout = Layout(dir)
    child = next((one for one in layout.read_state()["children"] if one["kind"] == "spark"), None)
    if child is None:
        raise CommandFailed(f"{dir}: runs without Spark; start it with: millrace up --spark", NOT_FOUND)
    secret = cluster_secret.load(configuration.load(layout.config).secret_file)
    print(server.own_session(int(child["address"].rpartition(":")[2]), secret.token(cluster_secret.SPARK)))
