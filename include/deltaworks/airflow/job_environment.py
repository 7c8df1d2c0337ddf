"""What a task sets in its environment for the job it starts: keys of connections, and the run that lineage joins."""

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
#: As the documents of Airflow's OpenLineage provider have it for jobs that a task starts.
PARENT_VARIABLE = "OPENLINEAGE_PARENT_ID"
_PROVIDER = "airflow.providers.openlineage"


def set_job_environment(environment: EnvironmentSpec | None, context: Context) -> None:
    """Set what the jobs of an environment need, for this process and those it starts. Idempotent.

    Raises:
        ConfigError: AWS_CONNECTION_MISSING, AWS_CONNECTION_INVALID.
    """
    if environment is None:
        return
    set_environment_keys(environment)
    if environment.lineage is not None:
        _set_parent(context)


def _set_parent(context: Context) -> None:
    """The task as the parent of the job's run, where Airflow's own OpenLineage provider is there and on."""
    if importlib.util.find_spec(_PROVIDER) is None:
        return
    try:
        from airflow.providers.openlineage.conf import is_disabled
        from airflow.providers.openlineage.plugins.macros import lineage_parent_id

        if not is_disabled():
            os.environ[PARENT_VARIABLE] = lineage_parent_id(context["ti"])
    except Exception as error:  # the job runs as well without a parent
        log.warning("The run that lineage would join is not known: %s", error)
