"""What the plugin's pages share: the headers they are sent with, and who may read what of a DAG they show."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.configuration import conf
from airflow.models.dag import DagModel

#: No script runs and nothing is loaded, whatever a page holds.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


def may_read_runs(dag_id: str, user: Any) -> bool:
    """Whether a user may see the runs of a DAG, as Airflow's auth manager has it."""
    return bool(
        get_auth_manager().is_authorized_dag(
            method="GET",
            access_entity=DagAccessEntity.RUN,
            details=DagDetails(id=dag_id, team_name=team_of(dag_id)),
            user=user,
        )
    )


def team_of(dag_id: str) -> str | None:
    """The team of a DAG, None where there are no teams. A query for each, so none is made without them."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        return None
    team: str | None = DagModel.get_team_name(dag_id)
    return team
