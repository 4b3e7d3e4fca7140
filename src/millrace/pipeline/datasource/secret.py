"""The key by which `format("millrace")` opens the log's internal topics [A10].

In: the option `secretFile`, the environment, the working directory of Spark's driver. Out: options that carry the key
of the Kafka port, and never the secret: they go to tasks inside the reader's pickled state. Promise: InvalidOption
names the option where no secret is found or the brokers have another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from millrace.errors import ConfigError, InvalidOption, SecretNotProved
from millrace.ops import cluster_secret
from millrace.ops.cluster_secret import KAFKA
from millrace.pipeline.datasource.options import Options

VARIABLE = "MILLRACE_SECRET_FILE"
USUAL = os.path.join(".millrace", "secret")            # where `millrace up` makes it
WHERE = f"give the path of the cluster's secret (option secretFile, or {VARIABLE} in the environment of Spark's driver)"


def with_key(options: Options, environ: Mapping[str, str] = os.environ) -> Options:
    path = options.secret_file or environ.get(VARIABLE, "")
    if not path and not os.path.exists(USUAL):
        raise InvalidOption(f"option secretFile is missing, and there is no {os.path.abspath(USUAL)}: {WHERE}")
    try:
        secret = cluster_secret.load(path or USUAL)
    except ConfigError as error:
        raise InvalidOption(f"option secretFile: {str(error).removeprefix('cluster.secret_file: ')}; {WHERE}") from None
    return options._replace(log_key=secret.proof_key(KAFKA))


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except SecretNotProved as error:
        raise InvalidOption(f"option secretFile: it is not the secret of these brokers ({error}); {WHERE}") from None
