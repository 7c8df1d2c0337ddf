"""What Airflow's refusals mean, and what to do: permissions that a login lacks, DAGs that are not there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

from deltaworks.errors import ConfigError
from deltaworks.operations.airflow_login import AirflowLogin
from deltaworks.operations.airflow_resources import Dag, DagImportError
from deltaworks.specs.base import suggest_name

FORBIDDEN = 403
NOT_FOUND = 404
_DAG = re.compile(r"^/dags/(?P<dag>[^/?]+)(?P<rest>/.*)?$")
#: What a request needs, by its method and the last word of its path, in the words of FAB, which has the finest.
_PERMISSIONS = {
    ("PATCH", ""): "edit the DAG (FAB: `can edit on DAGs`)",
    ("POST", "dagRuns"): "trigger the DAG (FAB: `can create on DAG Runs` and `can edit on DAGs`)",
    ("POST", "clearTaskInstances"): "clear its tasks (FAB: `can edit on Task Instances` and `can edit on DAGs`)",
    ("PATCH", "dagRuns"): "edit its runs (FAB: `can edit on DAG Runs` and `can edit on DAGs`)",
}
_MAX_SHOWN = 3


def request_error(login: AirflowLogin, method: str, path: str, *, status: int, detail: str) -> ConfigError:
    """The error for a request that is not allowed, or otherwise refused."""
    response = f"Airflow at {login.url} answered {status} to {method} {path}: {detail}."
    if status != FORBIDDEN:
        return ConfigError("AIRFLOW_REFUSED", response, hint="Mend what it names; the conf is that of the DAG's form.")
    who = f"{login.username}, as {login.source} has it," if login.username else f"The token of {login.source}"
    return ConfigError(
        "AIRFLOW_FORBIDDEN",
        f"{who} may not {required_permission(method, path)}. {response}",
        hint="Have an administrator of that Airflow give the login the role User (of FAB: Op), or this permission on "
        "this DAG alone; docs/explanation/security.md has who may do what.",
    )


def required_permission(method: str, path: str) -> str:
    """What a login may not do that is refused this request."""
    match = _DAG.match(path)
    rest = ((match["rest"] or "") if match else path).strip("/").split("/")
    word = "dagRuns" if method == "PATCH" and rest[0] == "dagRuns" else rest[-1]
    return _PERMISSIONS.get((method, word), "read it" if method == "GET" else "do this")


def dag_id_in_path(path: str) -> str:
    """The DAG that a request is about; empty where it is about none."""
    match = _DAG.match(path)
    return unquote(match["dag"]) if match else ""


def dag_unknown_error(
    login: AirflowLogin, dag_id: str, dags: Sequence[Dag], problems: Sequence[DagImportError]
) -> ConfigError:
    """The error for a DAG that Airflow does not have, with what keeps it out where Airflow says so.

    Args:
        problems: the import errors there are; those of the file that has DAGs of its kind are shown, or else the first.
    """
    kind = dag_id.partition("__")[0]
    files = {dag.file for dag in dags if dag.file and dag.dag_id.partition("__")[0] == kind}
    relevant = [problem for problem in problems if any(problem.filename.endswith(file) for file in files)] or list(
        problems
    )
    message = f"Airflow at {login.url} has no DAG {dag_id}; {suggest_name(dag_id, [dag.dag_id for dag in dags])}."
    if relevant:
        listed = "; ".join(f"{problem.filename}: {problem.last_line}" for problem in relevant[:_MAX_SHOWN])
        return ConfigError(
            "AIRFLOW_DAG_UNKNOWN",
            f"{message} It cannot import {listed}.",
            hint="Mend what the import error names: Airflow shows its whole trace above its list of DAGs.",
        )
    return ConfigError(
        "AIRFLOW_DAG_UNKNOWN",
        message,
        hint="Airflow reads new declarations within a minute or so. Where it stays: compare the checkout and "
        "DELTAWORKS_PIPELINES of that Airflow with those here, and its address.",
    )
