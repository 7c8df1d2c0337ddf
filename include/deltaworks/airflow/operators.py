"""The operators: a spark-submit job and a plain Python process, both bound to their task's life."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.exceptions import AirflowNotFoundException

from deltaworks.airflow.child_process import child_options
from deltaworks.airflow.job_output import JobOutput
from deltaworks.airflow.names import RUN_TEMPLATE, SPARK_CONNECTION, spark_job
from deltaworks.airflow.spark_hook import SparkJobHook
from deltaworks.control.provenance import RUN_VARIABLE
from deltaworks.errors import ConfigError, TransientError
from deltaworks.specs.catalog import project_root
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.spark_conf import submit_conf

if TYPE_CHECKING:
    from airflow.sdk import Connection, Context

SPARK_UI_XCOM = "spark_ui"
#: What a job did, record by record: for an approval, a report, the next task.
RESULTS_XCOM = "results"


@dataclass(frozen=True, slots=True)
class ParamArgument:
    """Turns a DAG param into a job's argument.

    A text becomes `--flag text`, a list `--flag a,b`. A boolean becomes the bare flag when it equals `when`. Empty
    means: no argument.
    """

    param: str
    flag: str
    when: bool = True

    def render(self, params: Mapping[str, Any]) -> list[str]:
        value = params.get(self.param)
        if isinstance(value, bool):
            return [self.flag] if value is self.when else []
        if not value:
            return []
        return [self.flag, value if isinstance(value, str) else ",".join(value)]


class SparkJobOperator(SparkSubmitOperator):
    """Runs one entry point of spark_jobs/ with the environment's Spark settings.

    Master and deploy mode come from the Spark connection alone: `local[*]`, `spark://…`, `yarn`, `k8s://…`;
    cluster mode on YARN and Kubernetes is tracked by their APIs. No credential goes on the command line:
    the job takes them
    from its environment.

    Args:
        niceness: by how much spark-submit, and a master that is `local`, give way to other processes of the machine.

    Raises:
        ConfigError: SPARK_CONNECTION_MISSING, SPARK_CONNECTION_INCOMPLETE, DEPLOY_MODE_UNSUPPORTED.
    """

    def __init__(
        self,
        *,
        job: str,
        pipeline: str,
        environment: EnvironmentSpec,
        arguments: Sequence[str] = (),
        param_arguments: Sequence[ParamArgument] = (),
        conn_id: str = SPARK_CONNECTION,
        name: str = "{{ dag.dag_id }}.{{ task.task_id }}",
        driver_memory: str | None = None,
        niceness: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            application=str(spark_job(job)),
            application_args=["--pipeline", pipeline, *arguments],
            env_vars={RUN_VARIABLE: RUN_TEMPLATE},
            conn_id=conn_id,
            name=name,
            driver_memory=driver_memory or environment.spark.driver_memory,
            **kwargs,
        )
        self.pipeline = pipeline
        self._environment = environment
        self._param_arguments = tuple(param_arguments)
        self._niceness = niceness

    def execute(self, context: Context) -> None:
        """Submit the job and wait for its end."""
        self._follow(self._checked_connection())
        settings = submit_conf(self._environment, project_root())
        settings.pop("spark.driver.memory", None)  # given as --driver-memory, which may differ by job
        self.conf = {**settings, **(self.conf or {})}
        params = context.get("params") or {}
        self.application_args = [
            *(self.application_args or ()),
            *(part for argument in self._param_arguments for part in argument.render(params)),
        ]
        hook = self._get_hook()
        hook.niceness = self._niceness
        hook.output = JobOutput(
            on_ui=lambda address: context["ti"].xcom_push(key=SPARK_UI_XCOM, value=address),
            on_results=lambda results: context["ti"].xcom_push(key=RESULTS_XCOM, value=results),
        )
        self._hook = hook
        super().execute(context)

    def _checked_connection(self) -> Connection:
        """The Spark connection. The provider falls back to YARN without a word where there is none."""
        try:
            connection = BaseHook.get_connection(self._conn_id)
        except AirflowNotFoundException as error:
            raise ConfigError(
                "SPARK_CONNECTION_MISSING",
                f"Airflow has no connection {self._conn_id!r}, so it is not known where Spark runs.",
                hint=f"Create it as JSON, for example AIRFLOW_CONN_{self._conn_id.upper()}="
                '\'{"conn_type": "spark", "host": "local[2]"}\'.',
            ) from error
        if not connection.host:
            raise ConfigError(
                "SPARK_CONNECTION_INCOMPLETE",
                f"The connection {self._conn_id!r} names no master (a URI like spark://local[2] loses it).",
                hint="Write the connection as JSON with the whole master URL as its host.",
            )
        return connection

    def _follow(self, connection: Connection) -> None:
        """Choose how the driver is tracked from where the connection says it runs."""
        extra = connection.extra_dejson
        if extra.get("deploy-mode") != "cluster":
            return
        where = f"{connection.conn_type} {connection.host}"
        if "k8s" in where:
            self._track_driver_via_k8s_api = True
            needed = "namespace"
        elif "yarn" in where:
            self._yarn_track_via_rm_api = True
            needed = "yarn_resourcemanager_webapp_address"
        else:
            raise ConfigError(
                "DEPLOY_MODE_UNSUPPORTED",
                f"The connection {self._conn_id!r} asks for cluster mode on {connection.host}; Spark runs "
                "Python drivers in cluster mode on YARN and Kubernetes only.",
                hint='Remove "deploy-mode": "cluster" from the connection.',
            )
        if not extra.get(needed):
            raise ConfigError(
                "SPARK_CONNECTION_INCOMPLETE",
                f"Cluster mode on {connection.host} needs {needed!r} in the extra of {self._conn_id!r}.",
                hint=f"Add {needed!r}: without it a lost task could not find its driver again.",
            )

    def _get_hook(self) -> SparkJobHook:
        return SparkJobHook(
            conf=self.conf,
            conn_id=self._conn_id,
            name=self.name,
            driver_memory=self._driver_memory,
            application_args=self.application_args,
            env_vars=self.env_vars,
            status_poll_interval=self._status_poll_interval,
            track_driver_via_k8s_api=self._track_driver_via_k8s_api,
            yarn_track_via_rm_api=self._yarn_track_via_rm_api,
        )


class ProcessOperator(BaseOperator):
    """Runs a Python module as a process of its own, with no shell between.

    Its output goes to the task log line by line. When the task is ended from outside it gets SIGTERM and,
    four seconds later, SIGKILL; when the task runner dies the kernel ends it.
    """

    template_fields: Sequence[str] = ("arguments", "env_vars")
    _stop_seconds = 4.0

    def __init__(
        self,
        *,
        module: str,
        arguments: Sequence[str] = (),
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.module = module
        self.arguments = list(arguments)
        self.env_vars = {RUN_VARIABLE: RUN_TEMPLATE, **(env_vars or {})}
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Context) -> None:
        """Run the module to its end.

        Raises:
            DeltaworksError: what the process said was wrong.
            TransientError: PROCESS_FAILED when it ended without a word.
        """
        command = [sys.executable, "-m", self.module, *self.arguments]
        self.log.info("Running %s", " ".join(command))
        output = JobOutput(on_results=lambda results: context["ti"].xcom_push(key=RESULTS_XCOM, value=results))
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.env_vars},
            **child_options(),
        )
        for line in output.listen(self._process.stdout or ()):
            self.log.info(line.rstrip())
        code = self._process.wait()
        if code == 0:
            return
        raise output.error or TransientError(
            "PROCESS_FAILED",
            f"python -m {self.module} ended with exit code {code} and no error of its own.",
            hint="Read the lines above.",
        )

    def on_kill(self) -> None:
        """End the process."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=self._stop_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
