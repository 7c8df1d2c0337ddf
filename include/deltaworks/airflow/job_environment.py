"""Sets environment variables for a task's job: keys of connections, and the OpenLineage parent run."""

from __future__ import annotations

import importlib.util
import logging
import os
from typing import TYPE_CHECKING

from deltaworks.airflow.aws_connections import set_environment_keys

if TYPE_CHECKING:
    from airflow.sdk import Context

    from deltaworks.specs.environment import EnvironmentSpec

log = logging.getLogger(__name__)
#: As documented by Airflow's OpenLineage provider for jobs that a task starts.
PARENT_VARIABLE = "OPENLINEAGE_PARENT_ID"
_PROVIDER = "airflow.providers.openlineage"


def set_job_environment(environment: EnvironmentSpec | None, context: Context) -> None:
    """Sets the variables that an environment's jobs need, for this process and its children. Idempotent.

    Raises:
        ConfigError: AWS_CONNECTION_MISSING, AWS_CONNECTION_INVALID.
    """
    if environment is None:
        return
    set_environment_keys(environment)
    if environment.lineage is not None:
        _set_parent(context)


def _set_parent(context: Context) -> None:
    """Sets the task as parent of the job's lineage run if Airflow's OpenLineage provider is installed and enabled."""
    if importlib.util.find_spec(_PROVIDER) is None:
        return
    try:
        from airflow.providers.openlineage.conf import is_disabled
        from airflow.providers.openlineage.plugins.macros import lineage_parent_id

        if not is_disabled():
            os.environ[PARENT_VARIABLE] = lineage_parent_id(context["ti"])
    except Exception as error:  # the job works without a parent
        log.warning("The parent run for lineage is unknown: %s", error)
