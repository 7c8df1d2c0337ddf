"""Links on a task's page: Spark UI, driver log, console page and alerts.

The plugin registers the links, so the API server computes them live, while a continuous task still runs. They are
relative to the server's root, so they work under any address of the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from deltaworks.airflow.approvals import OperationApproval
from deltaworks.airflow.names import server_path
from deltaworks.airflow.operators import SPARK_UI_XCOM, ProcessOperator, SparkJobOperator
from deltaworks.specs.dag_ids import split_dag_id

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class SparkUiLink(BaseOperatorLink):
    """Links to the driver's Spark UI, whose address the job prints. Empty before that, and if the UI is off."""

    name = "Spark UI"
    operators = [SparkJobOperator]  # noqa: RUF012

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        # The server's own function to read links from XComs. It needs the metadata database, which tasks cannot access.
        from airflow.serialization.definitions.operatorlink import XComOperatorLink

        reader = XComOperatorLink(name=self.name, xcom_key=SPARK_UI_XCOM)
        return reader.get_link(operator, ti_key=ti_key)  # type: ignore[arg-type]


class DriverLogLink(BaseOperatorLink):
    """Links to the log of this try, which in client mode contains all lines of the driver."""

    name = "Driver log"
    operators = [SparkJobOperator, ProcessOperator]  # noqa: RUF012

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        run = quote(ti_key.run_id, safe="")
        return server_path(f"/dags/{ti_key.dag_id}/runs/{run}/tasks/{ti_key.task_id}?try_number={ti_key.try_number}")


#: Kinds of DAGs that work for a pipeline, with the console page that shows their effect.
_CONSOLE_PAGES = {
    "stream": "/deltaworks/streams/{}",
    "gold": "/deltaworks/gold/{}",
    "maintenance": "/deltaworks/nights/{}",
    "mutations": "/deltaworks/mutations/{}",
    "reprocess": "/deltaworks/streams/{}",
    "restore": "/deltaworks/tables?pipeline={}",
    "recover": "/deltaworks/tables?pipeline={}",
    "replay": "/deltaworks/quarantine/{}",
    "erase": "/deltaworks/erasures?only={}",
}


class ConsoleLink(BaseOperatorLink):
    """Links to the console page of the task's subject, or of its DAG."""

    name = "Console"
    operators = [SparkJobOperator, ProcessOperator, OperationApproval]  # noqa: RUF012

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        name, kind = split_dag_id(ti_key.dag_id)
        if not name or kind not in _CONSOLE_PAGES:
            return server_path(f"/deltaworks/dag/{quote(ti_key.dag_id, safe='')}")
        return server_path(_CONSOLE_PAGES[kind].format(quote(name, safe="")))


class AlertsLink(BaseOperatorLink):
    """Links to the alerts of the DAG's pipeline, relay or namespace."""

    name = "Alerts"
    operators = [SparkJobOperator, ProcessOperator]  # noqa: RUF012

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        name, _ = split_dag_id(ti_key.dag_id)
        return server_path(f"/deltaworks/alerts?only={quote(name or ti_key.dag_id, safe='')}")


LINKS: tuple[BaseOperatorLink, ...] = (SparkUiLink(), DriverLogLink(), ConsoleLink(), AlertsLink())
