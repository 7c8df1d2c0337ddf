"""Ids and display names of Airflow's DAGs: first the subject, then the kind of work, so that every list sorts by
subject.

The subject is a pipeline, a relay, a group of streams, a namespace of personal data or a remediation, or the project.
"""

from __future__ import annotations

from typing import Final

_SEPARATOR: Final = "__"
#: The subject of DAGs that work for the complete project.
PROJECT: Final = "deltaworks"


def dag_id(subject: str, kind: str) -> str:
    """Returns the id of a subject's DAG of a kind, such as `games__stream`."""
    return f"{subject}{_SEPARATOR}{kind}"


def split_dag_id(dag_id: str) -> tuple[str, str]:
    """Returns subject and kind of a DAG id, such as `("games", "stream")`; both are empty for a foreign DAG."""
    subject, _, kind = dag_id.rpartition(_SEPARATOR)
    return (subject, kind) if subject else ("", "")


def display_name(dag_id: str) -> str:
    """Returns the name under which Airflow lists a DAG, such as `games · stream`."""
    subject, kind = split_dag_id(dag_id)
    return f"{'Deltaworks' if subject == PROJECT else subject} · {kind.replace('_', ' ')}"


def asset_name(kind: str, pipeline: str, table: str) -> str:
    """Returns the name of a table's Airflow asset, such as `gold.games.events_per_hour`."""
    return f"{kind}.{pipeline}.{table}"


def asset_code(kind: str, pipeline: str, table: str, *, uri: str) -> str:
    """Returns the Python expression of a table's Airflow asset, for DAGs that are scheduled on it.

    Airflow hands events only to runs of DAGs that name the registered URI; by a name alone the run has none. It changes
    the asset's group to that of the DAG parsed last.
    """
    return f'Asset(name="{asset_name(kind, pipeline, table)}", uri="{uri}", group="{kind}")'


#: The DAG that checks every stream and relay each minute.
HEALTH_DAG: Final = dag_id(PROJECT, "health")
#: The DAG of the process that evaluates rules.
RULES_DAG: Final = dag_id(PROJECT, "rules")
#: The DAG of the SQL server.
SQL_SERVER_DAG: Final = dag_id(PROJECT, "sql_server")
#: The DAG of the Spark Connect server.
SPARK_CONNECT_DAG: Final = dag_id(PROJECT, "spark_connect")
