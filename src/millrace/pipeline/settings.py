"""Settings of Spark that row work relies on, for whoever starts Spark: the Connect server or a driver in a capture.

Promises they carry: rounds get the cores in the order in which they came, beside what others run in pools of their own;
no task runs twice on purpose (speculation); a task whose worker died is tried again, under the claim of its plan [P5];
workers start with our modules loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace import limits

DAEMON = "millrace.pipeline.daemon"

# Over Connect all jobs are in the default pool. Inside a pool FAIR lets the one with the fewest running tasks go first,
# and of those with none the one whose name comes first as a text: while there is always somebody who waits, TaskSet_9
# waits for TaskSet_10 to TaskSet_89999, a minute and more. A round has as many tasks as there are cores, so whoever
# came first is soon through.
POOLS = """<?xml version="1.0"?>
<allocations>
  <pool name="default"><schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""

LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {file_bytes}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = {files}
"""


def local_master(cores: int) -> str:
    """Without the second number a local master never tries a task again."""
    return f"local[{cores or '*'},{limits.ROUND_TASK_TRIES}]"


def common(*, ui_port: int, pools_path: str, local_dir: str, warehouse_dir: str) -> dict[str, str]:
    return {
        "spark.ui.enabled": "true" if ui_port else "false",
        **({"spark.ui.port": str(ui_port)} if ui_port else {}),
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.killEnabled": "false",                  # its pages know no users
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": f"file://{pools_path}",
        "spark.speculation": "false",
        "spark.task.maxFailures": str(limits.ROUND_TASK_TRIES),
        "spark.python.daemon.module": DAEMON,
        "spark.python.worker.reuse": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",                 # what cannot be reckoned is an error, not a null
        "spark.sql.variable.substitute": "false",         # ${…} in an expression would show the server's environment
        "spark.local.dir": local_dir,
        "spark.sql.warehouse.dir": warehouse_dir,
    }


def own(conf: tuple[str, ...]) -> dict[str, str]:
    """The operator's own, from `spark.conf`: they win."""
    return {key: value for key, _, value in (setting.partition("=") for setting in conf)}


def properties(settings: Mapping[str, str]) -> str:
    """Text of a properties file; backslashes and line ends are the format's own."""
    return "".join(f"{key}={value}\n" for key, value in settings.items()).replace("\\", "\\\\")
