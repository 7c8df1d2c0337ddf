"""The environment every process of the stack inherits, rendered into `.deltaworks/env` and read back by commands."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from deltaworks.errors import ConfigError
from deltaworks.specs.project import PIPELINES_VARIABLE
from deltaworks.specs.settings_file import load_settings, read_settings
from sandbox.airflow.settings import airflow_settings
from sandbox.servers.landing import OFFERS_QUEUE, queue_url
from sandbox.stack.alert_channel import webhook_variable
from sandbox.stack.home import StackHome
from sandbox.stack.ports import HOST
from sandbox.stack.secrets import StackSecrets, write_private

#: Where the stack's broker is; not set where it has none.
KAFKA_BOOTSTRAP = "DELTAWORKS_KAFKA_BOOTSTRAP"
#: Where the stack's collector takes events; not set where it has none.
COLLECTOR_URL = "DELTAWORKS_COLLECTOR_URL"
#: Where SNS, SQS, Kinesis and the landing bucket are.
AWS_ENDPOINT = "DELTAWORKS_AWS_ENDPOINT"
# Values of the calling shell would change how the stack's own processes behave.
_NOT_INHERITED = ("AIRFLOW_", "AWS_", "DELTAWORKS_LAKE_", "DELTAWORKS_AWS_", "PYTHON", "SPARK_", "HADOOP_")
_LOOPBACK = f"{HOST},localhost"


def stack_variables(
    home: StackHome,
    *,
    ports: Mapping[str, int],
    keys: StackSecrets,
    java_home: Path,
    with_broker: bool = False,
    with_collector: bool = False,
    pipelines: Sequence[str] | None = None,
) -> dict[str, str]:
    """All variables of the stack: addresses and keys of its servers, Spark's and Airflow's settings.

    Args:
        pipelines: those that run; by default what DELTAWORKS_PIPELINES says now.
    """
    aws_endpoint = f"http://{HOST}:{ports['moto']}"
    variables = {
        "DELTAWORKS_HOME": str(home.root),
        "DELTAWORKS_PROJECT": str(home.project),
        "DELTAWORKS_ENVIRONMENT": os.environ.get("DELTAWORKS_ENVIRONMENT", "local"),
        "DELTAWORKS_KEYRING": str(home.keyring),
        "DELTAWORKS_LAKE_ENDPOINT": f"http://{HOST}:{ports['s3proxy']}",
        "DELTAWORKS_LAKE_ACCESS_KEY": keys.lake_access_key,
        "DELTAWORKS_LAKE_SECRET_KEY": keys.lake_secret_key,
        AWS_ENDPOINT: aws_endpoint,
        "DELTAWORKS_AWS_ACCESS_KEY": keys.aws_access_key,
        "DELTAWORKS_AWS_SECRET_KEY": keys.aws_secret_key,
        "DELTAWORKS_LANDING_QUEUE_URL": queue_url(aws_endpoint),
        "DELTAWORKS_OFFERS_QUEUE_URL": queue_url(aws_endpoint, OFFERS_QUEUE),
        "JAVA_HOME": str(java_home),
        "PATH": _search_path(java_home),
        "PYTHONPATH": str(home.project / "include"),
        "PYTHONUNBUFFERED": "1",
        "SPARK_HOME": str(_spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        # Drivers and their pages stay on this machine, whatever its host name resolves to.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
        # No role lookup on a cloud's metadata address, and no proxy between processes of one machine.
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": _LOOPBACK,
        "no_proxy": _LOOPBACK,
    }
    selection = os.environ.get(PIPELINES_VARIABLE, "") if pipelines is None else ",".join(pipelines)
    # Written even where it is empty: otherwise the shell of a later command would change what the stack runs.
    variables[PIPELINES_VARIABLE] = selection
    variables |= webhook_variable(home)
    if with_broker:
        variables[KAFKA_BOOTSTRAP] = f"{HOST}:{ports['kafka']}"
    if with_collector:
        variables[COLLECTOR_URL] = f"http://{HOST}:{ports['collector']}"
    return variables | airflow_settings(home, port=ports["airflow"], keys=keys)


def _search_path(java_home: Path) -> str:
    folders = [str(Path(sys.executable).parent), str(java_home / "bin")]
    rest = [entry for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry not in folders]
    return os.pathsep.join(folders + rest)


def _spark_home() -> Path:
    module = importlib.util.find_spec("pyspark")
    if module is None or module.origin is None:
        raise ConfigError(
            "PACKAGE_MISSING",
            f"pyspark is not installed in {sys.prefix}.",
            hint="Install the lock file: uv pip sync requirements.lock.",
        )
    return Path(module.origin).parent


def write_env(home: StackHome, variables: Mapping[str, str]) -> None:
    """Write the environment as `KEY=value` lines, quoted as a shell reads them, for the owner only."""
    lines = (f"{key}={shlex.quote(value)}\n" for key, value in sorted(variables.items()))
    write_private(home.env_file, "".join(lines))


def read_env(home: StackHome) -> dict[str, str]:
    """The environment as `write_env` wrote it.

    Raises:
        ConfigError: STACK_NOT_PREPARED when the stack was never started.
    """
    return read_settings(home.env_file)


@contextlib.contextmanager
def loaded_env(home: StackHome) -> Iterator[None]:
    """Apply `load_settings` for a block and undo it at its end. Not thread-safe."""
    before = dict(os.environ)
    load_settings(home.env_file)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def process_environment(home: StackHome) -> dict[str, str]:
    """The whole environment of a process of the stack: the calling shell's, cleaned, and the stack's over it."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
    return inherited | read_env(home)
