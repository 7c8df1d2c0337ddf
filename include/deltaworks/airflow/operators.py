"""Operators that run a spark-submit job or a Python process, and end it when the task ends.

They set the job's environment variables (keys of connections, the OpenLineage parent run) and, if the environment
declares a cluster for drivers, the Spark settings that start the driver as a pod.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException, AirflowSkipException

from deltaworks.airflow.aws_connections import refuse_remote_drivers, set_environment_keys
from deltaworks.airflow.child_process import JobOutput, child_options
from deltaworks.airflow.looks import REASON_KEY, WORK_KEY, start_arguments
from deltaworks.airflow.names import RUN_VARIABLES, SPARK_CONNECTION, spark_job
from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from deltaworks.operations.base import (
    ENGINE_KEY,
    ENGINE_OPTION,
    ERROR_KEY,
    ERROR_RECORD_KEY,
    OPERATIONS_MODULE,
    RESULTS_KEY,
    Look,
    Operation,
)
from deltaworks.operations.dag_forms import DRY_RUN, DagForm
from deltaworks.operations.options import Options, read_options, to_arguments
from deltaworks.specs.catalog import project_root
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.share_conf import Launch, launch_settings, master_kind
from deltaworks.specs.shares import Share
from deltaworks.specs.spark_conf import check_master, submit_conf

if TYPE_CHECKING:
    from airflow.sdk import Connection, Context

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


def spark_pod_settings(
    environment: EnvironmentSpec,
    connection: Connection,
    master: str,
    pipeline: str,
    variables: Collection[str] | None = None,
) -> dict[str, str]:
    """Returns spark-submit settings for a driver pod: image, accounts and templates; empty for other drivers.

    Args:
        variables: environment variables of the driver; by default those that its pipeline refers to, for a group's
            driver those of all pipelines.

    Raises:
        ConfigError: the pipeline's declaration is invalid.
    """
    spec = environment.kubernetes
    in_cluster = connection.extra_dejson.get("deploy-mode") == "cluster"
    if spec is None or not in_cluster or master_kind(master) != "kubernetes":
        return {}
    # Imported in the task, never when a DAG file is parsed.
    from deltaworks.kubernetes.pods import driver_variables, pod_settings
    from deltaworks.specs.project import load_catalog

    if variables is not None:
        return pod_settings(spec, variables)
    catalog = load_catalog(skip_invalid=True)
    pipelines = [catalog.pipeline(pipeline)] if pipeline else list(catalog.pipelines.values())
    return pod_settings(spec, driver_variables(environment, pipelines))


SPARK_UI_XCOM = "spark_ui"


class _OperationTask:
    """What both operators share: the operation, its options from the run's form, and whether the run selects it."""

    operation: Operation | None
    form: DagForm | None
    values: Mapping[str, Any]
    selected_if: str
    look_if: str
    #: The units of work that a look in the triggerer counted; None without a look.
    remaining_work: int | None = None

    def look_first(self, look: str, subject: str) -> None:
        """Has the task start in the triggerer, which looks whether it needs a process. Without `look_if` it starts in
        its process.
        """
        if not self.look_if:
            return
        start: Any = self
        start.start_from_trigger = True
        start.start_trigger_args = start_arguments(
            look,
            operation="" if self.operation is None else self.operation.name,
            subject=subject,
            values=self.values,
            selected_if=self.selected_if,
            look_if=self.look_if,
        )

    def execute_after_look(self, context: Context, event: Mapping[str, Any]) -> None:
        """Runs a task that needs a process, as `execute` does without a look."""
        self.remaining_work = event[WORK_KEY]
        log.info("Continued in a process: %s", event[REASON_KEY] or "this run does not look for work first")
        operator: Any = self
        token = ExecutorSafeguard.tracker.set(operator)
        try:
            operator.execute(context)
        finally:
            ExecutorSafeguard.tracker.reset(token)

    def skip_unless_selected(self) -> None:
        """Skips the task if the form selects other operations. Templates must be rendered before.

        Raises:
            AirflowSkipException: it is not selected.
        """
        if self.selected_if.strip() == "False":
            raise AirflowSkipException("The form of this run selects other operations.")

    def report_engine(self, context: Context, engine: str) -> None:
        """Says in the log and to the run's record what does the work of this task, and why."""
        log.info("Done by %s", engine)
        context["ti"].xcom_push(key=ENGINE_KEY, value=engine)

    def chosen_operation(self, context: Context) -> Operation | None:
        """Returns the task's operation; if it has only a form, the operation that the form selects.

        Raises:
            ConfigError: OPTION_INVALID.
        """
        if self.operation is not None or self.form is None:
            return self.operation
        return self.form.chosen(context.get("params") or {})

    def option_arguments(self, context: Context) -> list[str]:
        """Returns the options as arguments of the job. Templates must be rendered before.

        Raises:
            ConfigError: OPTION_INVALID.
        """
        options = self.chosen_options(context)
        return [] if options is None else to_arguments(options)

    def chosen_options(self, context: Context) -> Options | None:
        """Returns the operation's options: of the form, overridden by what the DAG fixes. None without an operation."""
        operation = self.chosen_operation(context)
        if operation is None:
            return None
        chosen = {} if self.form is None else self.form.option_values(operation, context.get("params") or {})
        return read_options(operation.options_model(), chosen | dict(self.values))


@contextmanager
def reported_error(context: Context) -> Iterator[None]:
    """Leaves the error of a task to the run's record, where it says what failed, and to commands that follow it."""
    try:
        yield
    except Exception as error:
        context["ti"].xcom_push(key=ERROR_KEY, value=str(error).splitlines()[0][:1000] if str(error) else repr(error))
        if isinstance(error, DeltaworksError):
            context["ti"].xcom_push(key=ERROR_RECORD_KEY, value=error.as_record())
        raise


class SparkJobHook(SparkSubmitHook):
    """Runs spark-submit as a child process that ends with the task; see `child_options`."""

    output: JobOutput | None = None
    niceness: int = 0

    def apply_launch(self, launch: Launch) -> None:
        """Sets niceness and, for a local master, the number of cores."""
        self.niceness = launch.niceness
        if master_kind(launch.master) == "local":
            self._connection["master"] = launch.master

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Runs the job until it ends.

        Raises:
            DeltaworksError: the error that the job reported, with whether it is retryable.
            AirflowException: the job failed without an error line; the text ends with its last lines of output.
        """
        try:
            return super().submit(application, **{**child_options(niceness=self.niceness), **kwargs})
        except AirflowException:
            if self.output is not None and self.output.error is not None:
                # Without the provider's error, whose text is the command and the job's last lines of output.
                raise self.output.error from None
            raise

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(iter(self.output.parse_lines(itr)) if self.output else itr)


def _subject_arguments(pipeline: str, group: str) -> tuple[str, ...]:
    if group:
        return "--group", group
    return ("--pipeline", pipeline) if pipeline else ()


class SparkJobOperator(_OperationTask, SparkSubmitOperator):
    """Runs an entry point of spark_jobs/ with the environment's Spark settings.

    Master and deploy mode come from the Spark connection alone: `local[*]`, `spark://…`, `yarn`, `k8s://…`. In cluster
    mode on YARN and Kubernetes the driver is tracked by their APIs. The command line contains no credentials: the job
    takes them from its environment.

    Args:
        pipeline, group: the pipeline or the group of streams the job works for; neither for a job of the lake.
        variables: environment variables that a driver pod gets; by default those that its pipelines refer to.
        operation: the operation the job runs; its options come from `values` and the form.
        values: options the DAG fixes; texts may be templates. They override the form.
        form: the form of the run's params, from which options are read; None if the DAG fixes all.
        selected_if: a template; where it renders to `False` the task is skipped, as the form selects other operations.
        engine: a template for what does the work of an operation with an option `spark`:
            - `spark`: the submitted job;
            - `auto`: the submitted job, unless a process without Spark, which changes nothing, finds no work;
            - `process`: a process without Spark (option off); a job is submitted only if its results leave work for
              Spark (`spark_work_count`).
        look_if: a template. Not empty, the task starts in the triggerer, which skips it if the form selects other
            operations, and where this renders to `True` if it has no work; see `deltaworks.airflow.looks`.
        share: the job's share of the cluster. With a local master: its cores and niceness.

    Raises:
        ConfigError: SPARK_CONNECTION_MISSING, SPARK_CONNECTION_INCOMPLETE, DEPLOY_MODE_UNSUPPORTED, SPARK_UNPROTECTED,
            AWS_CONNECTION_MISSING, AWS_CONNECTION_INVALID.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "values",
        "selected_if",
        "engine",
        "look_if",
    )

    def __init__(
        self,
        *,
        job: str,
        environment: EnvironmentSpec,
        share: Share,
        pipeline: str = "",
        group: str = "",
        variables: Collection[str] | None = None,
        arguments: Sequence[str] = (),
        operation: Operation | None = None,
        values: Mapping[str, Any] | None = None,
        form: DagForm | None = None,
        conn_id: str = SPARK_CONNECTION,
        name: str = "{{ dag.dag_id }}.{{ task.task_id }}",
        selected_if: str = "True",
        engine: str = "spark",
        look_if: str = "",
        env_vars: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            application=str(spark_job(job)),
            application_args=[*_subject_arguments(pipeline, group), *arguments],
            env_vars={**RUN_VARIABLES, **(env_vars or {})},
            conn_id=conn_id,
            name=name,
            **kwargs,
        )
        self.pipeline = pipeline
        self._variables = variables
        self._environment = environment
        self.operation = operation
        self.values = dict(values or {})
        self.form = form
        self.selected_if = selected_if
        self.engine = engine
        self.look_if = look_if
        self.look_first("" if operation is None else operation.look, pipeline)
        self.share = share
        self._launch: Launch | None = None
        self._why = ""

    def execute(self, context: Context) -> None:
        """Submits the job and waits until it ends."""
        self.skip_unless_selected()
        set_job_environment(self._environment, context)
        if self._completes_without_spark(context):
            return
        connection = self._spark_connection()
        self._configure_tracking(connection)
        master = _master_of(connection)
        self.report_engine(context, f"spark-submit on {master} ({self._why or 'engine spark'})")
        check_master(self._environment, master)
        self._launch = launch_settings(self.share, master, self._environment)
        pods = spark_pod_settings(self._environment, connection, master, self.pipeline, self._variables)
        settings = pods | submit_conf(self._environment, project_root(), self._launch)
        self._driver_memory = settings.pop("spark.driver.memory")  # passed by --driver-memory
        self.conf = {**settings, **(self.conf or {})}
        self.application_args = [*(self.application_args or ()), *self.option_arguments(context)]
        output = JobOutput(
            on_ui_address=lambda address: context["ti"].xcom_push(key=SPARK_UI_XCOM, value=address),
            on_results=lambda results: context["ti"].xcom_push(key=RESULTS_KEY, value=results),
        )
        self.env_vars = {**(self.env_vars or {}), **output.variables}
        hook = self._get_hook()
        hook.output = output
        self._hook = hook
        with reported_error(context):
            super().execute(context)

    def _completes_without_spark(self, context: Context) -> bool:
        """Runs the operation without Spark if engine or options say so; returns True if no work remains.

        A dry run needs no Spark where the operation has an option without it. On failure returns False, so that the
        Spark job runs and reports the error.
        """
        engine, options = self.engine.strip(), self.chosen_options(context)
        if self.remaining_work is not None and engine != "process":
            self._why = _remaining_work(engine, self.remaining_work)
            return False
        is_dry_run = hasattr(options, ENGINE_OPTION) and bool(getattr(options, DRY_RUN, False))
        if options is None or (engine == "spark" and not is_dry_run):
            return False
        looks = engine == "auto" and hasattr(options, DRY_RUN)
        changed = {ENGINE_OPTION: False} | ({DRY_RUN: True} if looks else {})
        arguments = to_arguments(options.model_copy(update=changed))
        command = [sys.executable, self.application, *(self.application_args or ()), *arguments]
        results: list[Any] = []
        output = JobOutput(on_results=results.extend)
        completed = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            env={**os.environ, **(self.env_vars or {}), **output.variables},
            check=False,
            **child_options(niceness=self.share.niceness),
        )
        shown = "".join(output.parse_lines(completed.stdout.splitlines(keepends=True)))
        if completed.returncode != 0:
            self._why = f"the process without Spark ended with exit code {completed.returncode}"
            return False
        remaining = sum(int(result.get("spark_work_count", 1)) for result in results) if results else 1
        if remaining and not is_dry_run:
            self._why = _remaining_work(engine, remaining)
            return False
        what = "a dry run" if is_dry_run else "nothing to do" if looks else "nothing remains for Spark"
        self.report_engine(context, f"a process without Spark (engine {engine}: {what})")
        self.log.info("%s", shown)
        context["ti"].xcom_push(key=RESULTS_KEY, value=results)
        return True

    def _spark_connection(self) -> Connection:
        """Returns the Spark connection. If there is none, the provider would silently use YARN."""
        try:
            connection = BaseHook.get_connection(self._conn_id)
        except AirflowNotFoundException as error:
            raise ConfigError(
                "SPARK_CONNECTION_MISSING",
                f"Airflow has no connection {self._conn_id!r}, which names the Spark master.",
                hint=f"Create it as JSON, for example AIRFLOW_CONN_{self._conn_id.upper()}="
                '\'{"conn_type": "spark", "host": "local[2]"}\'.',
            ) from error
        if not connection.host:
            raise ConfigError(
                "SPARK_CONNECTION_INCOMPLETE",
                f"The connection {self._conn_id!r} names no master (a URI like spark://local[2] loses it).",
            )
        return connection

    def _configure_tracking(self, connection: Connection) -> None:
        """Configures how the driver is tracked, from the connection's master and deploy mode."""
        extra = connection.extra_dejson
        if extra.get("deploy-mode") != "cluster":
            return
        refuse_remote_drivers(self._environment, str(connection.host))
        target = f"{connection.conn_type} {connection.host}"
        if "k8s" in target:
            self._track_driver_via_k8s_api = True
            self.application = f"local://{self.application}"  # a file of the image, which must not be uploaded
            required_extra = "namespace"
        elif "yarn" in target:
            self._yarn_track_via_rm_api = True
            required_extra = "yarn_resourcemanager_webapp_address"
        else:
            raise ConfigError(
                "DEPLOY_MODE_UNSUPPORTED",
                f"The connection {self._conn_id!r} asks for cluster mode on {connection.host}; Spark runs "
                "Python drivers in cluster mode on YARN and Kubernetes only.",
            )
        if not extra.get(required_extra):
            raise ConfigError(
                "SPARK_CONNECTION_INCOMPLETE",
                f"Cluster mode on {connection.host} needs {required_extra!r} in the extra of {self._conn_id!r}.",
                hint=f"Add {required_extra!r}: without it a lost task could not find its driver again.",
            )

    def _get_hook(self) -> SparkJobHook:
        hook = SparkJobHook(
            conf=self.conf,
            conn_id=self._conn_id,
            name=self.name,
            driver_memory=self._driver_memory,
            application_args=self.application_args,
            env_vars=self.env_vars,
            status_poll_interval=self._status_poll_interval,
            track_driver_via_k8s_api=self._track_driver_via_k8s_api,
            yarn_track_via_rm_api=self._yarn_track_via_rm_api,
            yarn_queue=self._launch.queue if self._launch else None,
        )
        if self._launch is not None:
            hook.apply_launch(self._launch)
        return hook


def _remaining_work(engine: str, count: int) -> str:
    return f"engine {engine}: {count:,} units of work remain for Spark"


def _master_of(connection: Connection) -> str:
    """Returns the Spark master as the provider derives it. In a connection written as a URI, the scheme is its type."""
    host = str(connection.host or "")
    has_full_url = connection.conn_type == "spark" and ("://" in host or not connection.port)
    return host if has_full_url else f"{connection.conn_type}://{host}"


class ProcessOperator(_OperationTask, BaseOperator):
    """Runs a Python module, or an operation without Spark, as a child process without a shell.

    Its output goes to the task log line by line. If the task is ended from outside, the process gets SIGTERM and four
    seconds later SIGKILL; if the task runner dies, the kernel kills it.

    Args:
        module: the module. Without one it runs an operation.
        environment: names the connections whose keys the process needs.
        operation, values, form, selected_if, look_if, niceness: as for `SparkJobOperator`. With a form and no
            operation, it runs the operation that the form selects.
        look: the function by which a module's run looks for work, given the catalog; an operation declares its own.
        subject: of the operation, for the look.
    """

    template_fields: Sequence[str] = ("arguments", "env_vars", "values", "selected_if", "look_if")
    _stop_seconds = 4.0

    def __init__(
        self,
        *,
        module: str = "",
        environment: EnvironmentSpec | None = None,
        arguments: Sequence[str] = (),
        operation: Operation | None = None,
        values: Mapping[str, Any] | None = None,
        form: DagForm | None = None,
        selected_if: str = "True",
        look_if: str = "",
        look: Callable[..., Look] | None = None,
        subject: str = "",
        env_vars: Mapping[str, str] | None = None,
        niceness: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.module = module
        self.arguments = list(arguments)
        self.operation = operation
        self.values = dict(values or {})
        self.form = form
        self.selected_if = selected_if
        self.look_if = look_if
        declared = "" if operation is None else operation.look
        self.look_first(declared if look is None else f"{look.__module__}:{look.__name__}", subject)
        self.env_vars = {**RUN_VARIABLES, **(env_vars or {})}
        self._environment = environment
        self._niceness = niceness
        self._process: subprocess.Popen[str] | None = None

    def module_arguments(self, context: Context) -> list[str]:
        """Returns the module that is run, and the operation."""
        operation = self.chosen_operation(context)
        return [self.module] if operation is None else [OPERATIONS_MODULE, operation.name]

    def execute(self, context: Context) -> None:
        """Runs the program until it ends.

        Raises:
            ConfigError: AWS_CONNECTION_MISSING, AWS_CONNECTION_INVALID.
            DeltaworksError: the error the process reported.
            TransientError: PROCESS_FAILED, it ended without an error line.
        """
        self.skip_unless_selected()
        set_job_environment(self._environment, context)
        program = ["-m", *self.module_arguments(context)]
        command = [sys.executable, *program, *self.arguments, *self.option_arguments(context)]
        self.log.info("Running %s", " ".join(command))
        if self.operation is not None:
            self.report_engine(context, "a process without Spark")
        output = JobOutput(on_results=lambda results: context["ti"].xcom_push(key=RESULTS_KEY, value=results))
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.env_vars, **output.variables},
            **child_options(niceness=self._niceness),
        )
        for line in output.parse_lines(self._process.stdout or ()):
            self.log.info(line.rstrip())
        code = self._process.wait()
        if code == 0:
            return
        with reported_error(context):
            raise output.error or TransientError(
                "PROCESS_FAILED", f"python {' '.join(program)} ended with exit code {code} without an error line."
            )

    def on_kill(self) -> None:
        """Ends the process."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=self._stop_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
