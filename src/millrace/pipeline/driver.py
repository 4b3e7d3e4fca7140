"""A Spark driver inside a capture (`spark.master`): where it is, and the settings and files it starts with.

In: the configuration, a directory of the capture's own. Out: a `Place` for `session.Session`. The same rounds run on it
as over Connect; the JVM is this process's child and ends with it, because its standard input closes.
"""

from __future__ import annotations

import os
import re

from millrace.errors import ConfigError
from millrace.ops.config import Config
from millrace.pipeline import settings
from millrace.pipeline.session import Place

_LOCAL = re.compile(r"local\[(\d+|\*)\]")


def place_of(config: Config, directory: str) -> Place:
    """Where a capture finds Spark. ConfigError: nobody said."""
    spark = config.spark
    if spark.remote:
        return Place(remote=spark.remote)
    if not spark.master:
        raise ConfigError("spark.remote: missing, and so is spark.master; name a Spark, or let `millrace up` start one")
    for name in ("tmp", "local", "warehouse"):
        os.makedirs(os.path.join(directory, name), exist_ok=True)
    return Place(master=_with_tries(spark.master), conf=_conf(config, os.path.abspath(directory)))


def _with_tries(master: str) -> str:
    """A local master tries a task again only if it is told how often."""
    local = _LOCAL.fullmatch(master)
    return settings.local_master(0 if local[1] == "*" else int(local[1])) if local else master


def _conf(config: Config, directory: str) -> dict[str, str]:
    spark, logging = config.spark, config.logging
    pools, log4j = os.path.join(directory, "pools.xml"), os.path.join(directory, "log4j2.properties")
    _write(pools, settings.POOLS)
    _write(log4j, settings.LOGGING.format(path=os.path.join(directory, "spark.log"), file_bytes=logging.file_bytes_max,
                                          files=logging.files_kept))
    return {
        **settings.common(ui_port=spark.ui_port, pools_path=pools, local_dir=os.path.join(directory, "local"),
                          warehouse_dir=os.path.join(directory, "warehouse")),
        "spark.driver.memory": spark.memory,
        "spark.driver.extraJavaOptions": " ".join([
            f"-Dlog4j2.configurationFile=file:{log4j}", f"-Djava.io.tmpdir={os.path.join(directory, 'tmp')}",
            "-XX:-UsePerfData", *(["-XX:TieredStopAtLevel=1"] if spark.compiler == "quick" else [])]),
        **({"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.authenticate": "true"}
           if spark.master.startswith("local") else {}),
        **settings.own(spark.conf),
    }


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
