"""Response headers and DAG access checks of the plugin's pages."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.configuration import conf
from airflow.models.dag import DagModel

#: Forbids scripts and all loading, so the content of a page does not matter.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


def may_read_runs(dag_id: str, user: Any) -> bool:
    """Returns whether Airflow's auth manager lets a user read the runs of a DAG."""
    return bool(
        get_auth_manager().is_authorized_dag(
            method="GET",
            access_entity=DagAccessEntity.RUN,
            details=DagDetails(id=dag_id, team_name=team_of(dag_id)),
            user=user,
        )
    )


def team_of(dag_id: str) -> str | None:
    """Returns the team of a DAG, or None without teams. Queries the database only if teams are enabled."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        return None
    team: str | None = DagModel.get_team_name(dag_id)
    return team
