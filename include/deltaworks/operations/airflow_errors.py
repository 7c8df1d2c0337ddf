"""Errors of Airflow's API with a next step: missing permissions, unknown DAGs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from deltaworks.errors import ConfigError
from deltaworks.operations.airflow_login import AirflowLogin
from deltaworks.operations.airflow_resources import Dag, DagImportError
from deltaworks.specs.base import suggest_name
from deltaworks.specs.dag_ids import split_dag_id

FORBIDDEN = 403
NOT_FOUND = 404
_DAG = re.compile(r"^/dags/(?P<dag>[^/?]+)(?P<rest>/.*)?$")
#: Permissions required by a request, by method and last path segment. They have the names of FAB's permissions, which
#: are the most specific ones.
_PERMISSIONS = {
    ("PATCH", ""): "edit the DAG (FAB: `can edit on DAGs`)",
    ("POST", "dagRuns"): "trigger the DAG (FAB: `can create on DAG Runs` and `can edit on DAGs`)",
    ("POST", "clearTaskInstances"): "clear its tasks (FAB: `can edit on Task Instances` and `can edit on DAGs`)",
    ("PATCH", "dagRuns"): "edit its runs (FAB: `can edit on DAG Runs` and `can edit on DAGs`)",
}
_MAX_SHOWN = 3


def request_error(login: AirflowLogin, method: str, path: str, *, status: int, detail: str) -> ConfigError:
    """Returns the error for a forbidden or otherwise rejected request."""
    response = f"Airflow at {login.url} answered {status} to {method} {path}: {detail}."
    if status != FORBIDDEN:
        return ConfigError(
            "AIRFLOW_REFUSED", response, hint=("Correct the value it names; the conf must match the DAG's params.")
        )
    login_name = f"{login.username} (from {login.source})" if login.username else f"The token of {login.source}"
    return ConfigError(
        "AIRFLOW_FORBIDDEN",
        f"{login_name} may not {required_permission(method, path)}. {response}",
        hint="Ask an administrator of that Airflow to give the login the role User (FAB: Op), or this permission on "
        "this DAG alone; docs/explanation/security.md has who may do what.",
    )


def required_permission(method: str, path: str) -> str:
    """Returns the permission that a rejected request requires, as a phrase."""
    match = _DAG.match(path)
    rest = ((match["rest"] or "") if match else path).strip("/").split("/")
    word = "dagRuns" if method == "PATCH" and rest[0] == "dagRuns" else rest[-1]
    return _PERMISSIONS.get((method, word), "read it" if method == "GET" else "do this")


def dag_id_in_path(path: str) -> str:
    """Returns the DAG id in a request path; empty if the path has none."""
    match = _DAG.match(path)
    return unquote(match["dag"]) if match else ""


def dag_unknown_error(
    login: AirflowLogin, dag_id: str, dags: Sequence[Dag], problems: Sequence[DagImportError]
) -> ConfigError:
    """Returns the error for a DAG that Airflow does not have. It includes import errors that may be the cause.

    Args:
        problems: all import errors. The message shows those of the file with DAGs of the same kind, or else the first.
    """
    kind = split_dag_id(dag_id)[1]
    files = {dag.file for dag in dags if dag.file and split_dag_id(dag.dag_id)[1] == kind}
    relevant = [problem for problem in problems if any(problem.filename.endswith(file) for file in files)] or list(
        problems
    )
    message = f"Airflow at {login.url} has no DAG {dag_id}; {suggest_name(dag_id, [dag.dag_id for dag in dags])}."
    if relevant:
        listed = "; ".join(f"{problem.filename}: {problem.last_line}" for problem in relevant[:_MAX_SHOWN])
        return ConfigError(
            "AIRFLOW_DAG_UNKNOWN",
            f"{message} It cannot import {listed}.",
            hint="Correct the import error: Airflow shows the full trace above its list of DAGs.",
        )
    return ConfigError(
        "AIRFLOW_DAG_UNKNOWN",
        message,
        hint="Airflow reads new declarations within about a minute. If it is still missing, compare the checkout and "
        "DELTAWORKS_PIPELINES of that Airflow with the local ones, and check its address.",
    )
