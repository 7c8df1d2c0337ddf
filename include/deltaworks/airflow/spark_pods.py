"""Spark settings for a task that starts its driver as a pod of the cluster that the environment declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltaworks.specs.share_conf import master_kind

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from deltaworks.specs.environment import EnvironmentSpec


def spark_pod_settings(
    environment: EnvironmentSpec, connection: Connection, master: str, pipeline: str
) -> dict[str, str]:
    """Returns spark-submit settings for a driver pod: image, accounts and templates; empty for other drivers.

    The driver gets the environment variables that its pipeline refers to; a group's driver those of all pipelines.

    Raises:
        ConfigError: the pipeline's declaration is invalid.
    """
    spec = environment.kubernetes
    in_cluster = connection.extra_dejson.get("deploy-mode") == "cluster"
    if spec is None or not in_cluster or master_kind(master) != "kubernetes":
        return {}
    # Imported in the task, never when a DAG file is parsed.
    from deltaworks.kubernetes.spark_pods import driver_variables, pod_settings
    from deltaworks.specs.project import load_catalog

    catalog = load_catalog(skip_invalid=True)
    pipelines = [catalog.pipeline(pipeline)] if pipeline else list(catalog.pipelines.values())
    return pod_settings(spec, driver_variables(environment, pipelines))
