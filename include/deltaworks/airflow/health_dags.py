"""Builds the DAG that checks every relay and stream each minute and fails while one is unhealthy."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseHook, BaseOperator
from airflow.sdk.exceptions import AirflowNotFoundException

from deltaworks.airflow import names
from deltaworks.airflow.aws_connections import set_environment_keys
from deltaworks.airflow.dag_factory import DagKind, scheduled_dag
from deltaworks.airflow.job_alerts import job_callbacks, send_alerts_of_job
from deltaworks.airflow.operators import ProcessOperator
from deltaworks.control import paths
from deltaworks.errors import DeltaworksError, TransientError
from deltaworks.operations.mutate import look_at_backlogs
from deltaworks.operations.recover import look_at_data_files
from deltaworks.specs.dag_ids import PROJECT

if TYPE_CHECKING:
    from airflow.sdk import Context

    from deltaworks.airflow_client.api import AirflowApi
    from deltaworks.control.health.report import PausedLookup, Report
    from deltaworks.control.health.verdicts import Verdict
    from deltaworks.control.objects import ObjectStore
    from deltaworks.operations.base import Look
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.environment import EnvironmentSpec

VERDICTS_XCOM = "verdicts"
BACKLOG_MODULE = "deltaworks.mutations.backlog_check"
DATA_FILES_MODULE = "deltaworks.recovery.repair.data_file_check"


def health_dag(catalog: Catalog, environment: EnvironmentSpec) -> DAG:
    """Returns the health DAG. It has no retries: the next minute's run is the retry.

    It compares the files of tables with their logs too, and checks waiting mutation requests if a pipeline declares
    mutations. Both are looks in the triggerer, and need a process only to fail.
    """
    with scheduled_dag(
        PROJECT,
        "health",
        description="Checks every relay and stream by its heartbeat",
        owner="data-platform",
        tags=("health", PROJECT),
        timeout=timedelta(minutes=5),
        schedule="* * * * *",
        start_date=names.START_DATE,
        has_alerts=False,
        context={},
    ) as dag:
        CheckStreamsOperator(task_id="check_streams", retries=0, execution_timeout=timedelta(minutes=2))
        if catalog.pipelines:
            # Each damaged table has an alert of its own, so the task raises none.
            callbacks = {"on_failure_callback": send_alerts_of_job}
            _look_task(DATA_FILES_MODULE, look_at_data_files, environment, callbacks, task_id="check_data_files")
        if any(pipeline.mutations is not None for pipeline in catalog.pipelines.values()):
            check_mutations_task(environment)
    return dag


def check_mutations_task(environment: EnvironmentSpec) -> ProcessOperator:
    """Returns the task that fails while mutation requests of any pipeline wait too long."""
    return _look_task(BACKLOG_MODULE, look_at_backlogs, environment, job_callbacks(), task_id="check_mutations")


def _look_task(
    module: str,
    look: Callable[..., Look],
    environment: EnvironmentSpec,
    callbacks: Mapping[str, Any],
    *,
    task_id: str,
) -> ProcessOperator:
    """Returns a task that needs a process only to fail. It has no retries, since its DAG runs again soon."""
    return ProcessOperator(
        task_id=task_id,
        module=module,
        look=look,
        look_if="True",
        environment=environment,
        retries=0,
        execution_timeout=timedelta(minutes=2),
        **callbacks,
    )


HEALTH = DagKind(kind="health", subjects=lambda catalog: [catalog], build=health_dag)


class CheckStreamsOperator(BaseOperator):
    """Reads all heartbeats and stop flags, logs a table of verdicts, and fails if one is unhealthy.

    It raises and resolves alerts of streams and overdue jobs, restarts hung streams, sends notifications, and writes
    its own heartbeat. It pushes the verdicts as an XCom, from which the next run reads their start times.

    Raises:
        TransientError: STREAMS_UNHEALTHY, naming each unhealthy process with its cause and next step.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Checks all processes; returns the number of verdicts by state."""
        with contextlib.ExitStack() as stack:
            return self._check(context, stack)

    def _check(self, context: Context, stack: contextlib.ExitStack) -> dict[str, Any]:
        # The object store's client is imported in the task, never when the DAG file is parsed.
        from deltaworks.control.health import report as health_report
        from deltaworks.control.health.processes import channel_warning, process_reports
        from deltaworks.control.objects import open_objects
        from deltaworks.specs.project import load_catalog

        catalog = load_catalog(skip_invalid=True)
        set_environment_keys(catalog.environment)
        objects, airflow = open_objects(catalog.environment.lake), SharedApi(catalog.environment, stack)
        previous = _previous_verdicts(context)
        reports = health_report.with_waiting_causes(
            catalog,
            health_report.check_subjects(
                health_report.subjects(catalog),
                objects,
                previous=previous,
                paused=self._paused_lookup(context, airflow),
            ),
        )
        reports = self._with_task_starts(airflow, reports)
        reports += health_report.invalid_spec_reports(catalog, objects, previous=previous)
        reports += process_reports(catalog, objects, previous=previous)
        self.log.info("Relays and streams:\n%s", health_report.format_reports(reports))
        if unheard := channel_warning(catalog.environment.alerts):
            self.log.warning("%s", unheard)
        records = {item.subject.key: health_report.verdict_to_record(item.verdict) for item in reports}
        context["ti"].xcom_push(key=VERDICTS_XCOM, value=records)
        unhealthy = [item.verdict for item in reports if item.verdict.is_unhealthy]
        self._alert(context, catalog, objects, reports, airflow)
        self._write_run_notes(airflow, reports, previous)
        self._measure_new_tables(airflow, objects, reports)
        if unhealthy:
            raise _unhealthy_error(unhealthy)
        return {state: sum(r["state"] == state for r in records.values()) for state in _states(records)}

    def _alert(
        self, context: Context, catalog: Catalog, objects: ObjectStore, reports: list[Report], airflow: SharedApi
    ) -> None:
        """Raises, resolves and sends alerts, and restarts hung streams.

        If this fails, the error is logged, the verdicts are kept, and the health check writes no heartbeat. The dead
        man's switch alerts on the missing heartbeat.
        """
        from deltaworks.airflow.alert_sending import deliver
        from deltaworks.airflow.health_alerts import alert_on_overdue_jobs, alert_on_stale_gold, alert_on_verdicts
        from deltaworks.alerts.deadman import write_health_heartbeat
        from deltaworks.alerts.erasures import alert_on_erasures
        from deltaworks.alerts.sending import delete_old_deliveries
        from deltaworks.alerts.table_rules import alert_on_table_rules
        from deltaworks.control.clock import utc_now
        from deltaworks.control.health.report import verdict_to_record, write_verdicts

        now = utc_now()
        verdicts = [item.verdict for item in reports]
        try:
            write_verdicts(objects, {item.subject.key: verdict_to_record(item.verdict) for item in reports}, now=now)
            alert_on_verdicts(objects, verdicts, now=now)
            late = alert_on_overdue_jobs(objects, catalog, now=now) + alert_on_stale_gold(objects, catalog, now=now)
            if late:
                self.log.warning("Overdue jobs and stale gold tables: %s", ", ".join(late))
            if warned := alert_on_table_rules(objects, catalog, now=now):
                self.log.warning("Table rules that too many rows fail: %s", ", ".join(warned))
            if due := alert_on_erasures(objects, catalog, now=now):
                self.log.warning("Erasures due: %s", ", ".join(due))
            self._restart_hung(catalog.environment, objects, reports, airflow)
            sent = deliver(objects, catalog)
            self.log.info("Alerts: %s", sent)
            if now.minute == 0:
                delete_old_deliveries(objects, now=now)
            unhealthy = sum(verdict.is_unhealthy for verdict in verdicts)
            write_health_heartbeat(objects, run=str(context["ti"].run_id), checked=len(verdicts), unhealthy=unhealthy)
        except Exception:
            self.log.exception("Alerts could not be raised or sent.")

    def _write_run_notes(self, airflow: SharedApi, reports: list[Report], previous: Mapping[str, Verdict]) -> None:
        """Updates the notes of the streams' runs if Airflow is reachable. Notes are optional: failures are logged."""
        from deltaworks.airflow.restarts import due_notes, write_notes
        from deltaworks.control.clock import utc_now

        notes = due_notes(reports, previous, utc_now())
        if not notes:
            return
        try:
            write_notes(notes, airflow.open())
        except DeltaworksError as error:
            if error.condition == "AIRFLOW_CONNECTION_MISSING":
                self.log.info("Stream runs get no notes: %s", error)
            else:
                self.log.warning("Notes of stream runs could not be written: %s", error)

    def _measure_new_tables(self, airflow: SharedApi, objects: ObjectStore, reports: list[Report]) -> None:
        """Starts the first snapshot of tables, which would otherwise have no sizes before the first night.

        It looks every ten minutes. Failures are logged: the night takes a snapshot too.
        """
        from deltaworks.airflow.restarts import start_first_snapshots
        from deltaworks.control.clock import utc_now
        from deltaworks.control.health.report import unmeasured_pipelines

        now = utc_now()
        if now.minute % 10:
            return
        try:
            if missing := unmeasured_pipelines(reports, objects, now=now):
                started = start_first_snapshots(missing, airflow.open(), now=now)
                self.log.info("Their tables are measured for the first time: %s", ", ".join(started) or "none")
        except DeltaworksError as error:
            self.log.info("The first snapshots of tables could not be started: %s", error)

    def _paused_lookup(self, context: Context, airflow: SharedApi) -> PausedLookup:
        """Returns a look-up of paused DAGs: one request for all, or one for each DAG if the API is not reachable."""
        try:
            paused = {dag.dag_id for dag in airflow.open().dags(only_paused=True)}
        except DeltaworksError as error:
            self.log.info("Paused DAGs are looked up one by one: %s", error)
            return functools.cache(lambda dag_id: _is_paused(context, dag_id))
        return lambda dag_id: dag_id in paused

    def _with_task_starts(self, airflow: SharedApi, reports: list[Report]) -> list[Report]:
        """Looks up the tasks of processes that look hung, if Airflow is reachable: they may only just have started."""
        from deltaworks.airflow.restarts import hung_reports, with_task_starts
        from deltaworks.control.clock import utc_now

        if not hung_reports(reports):
            return reports
        try:
            return with_task_starts(reports, airflow.open(), now=utc_now())
        except DeltaworksError as error:
            self.log.warning("Tasks of hung processes could not be looked up: %s", error)
            return reports

    def _restart_hung(
        self, environment: EnvironmentSpec, objects: ObjectStore, reports: list[Report], airflow: SharedApi
    ) -> None:
        """Restarts hung streams if Airflow is reachable. Failures are logged, so that alerts are still sent."""
        from deltaworks.airflow.health_alerts import subject_of
        from deltaworks.airflow.restarts import HungProcess, hung_reports, resolve_restart_alerts, restart_hung
        from deltaworks.control.clock import utc_now

        now = utc_now()
        hung = [
            HungProcess(
                subject=subject_of(item.verdict),
                dag_id=item.subject.dag_id,
                record_key=paths.restarts(item.subject.control),
                max_restarts_per_hour=item.subject.restarts_per_hour,
                startup_seconds=item.subject.limits.grace_seconds,
            )
            for item in hung_reports(reports)
            # The liveness probe restarts a relay that runs in a pod.
            if item.subject.restarts_per_hour and (item.subject.kind != "relay" or environment.kubernetes is None)
        ]
        healthy = [subject_of(item.verdict) for item in reports if item.verdict.state in ("healthy", "stopped")]
        resolve_restart_alerts(objects, healthy, now=now)
        if not hung:
            return
        try:
            for line in restart_hung(objects, hung, airflow.open(), now=now):
                self.log.warning("Hung: %s", line)
        except DeltaworksError as error:
            self.log.error("Hung streams could not be restarted: %s", error)


class SharedApi:
    """This Airflow's API, opened at its first use in a run and closed with it. What failed to open is not tried again;
    the next minute's run is the retry.
    """

    def __init__(self, environment: EnvironmentSpec, stack: contextlib.ExitStack) -> None:
        self._environment, self._stack = environment, stack
        self._opened: AirflowApi | DeltaworksError | None = None

    def open(self) -> AirflowApi:
        """Returns the client.

        Raises:
            ConfigError: from `airflow_api`.
        """
        if self._opened is None:
            try:
                self._opened = self._stack.enter_context(airflow_api(self._environment))
            except DeltaworksError as error:
                self._opened = error
        if isinstance(self._opened, DeltaworksError):
            raise self._opened
        return self._opened


def airflow_api(environment: EnvironmentSpec) -> AirflowApi:
    """Returns a client of this Airflow's API, from its connection or else the environment's declaration.

    Requests time out after 10 s and are not retried.

    Raises:
        ConfigError: AIRFLOW_CONNECTION_MISSING, so that hung streams have to be restarted manually;
            AIRFLOW_CONNECTION_INVALID.
    """
    from deltaworks.airflow_client.api import AirflowApi
    from deltaworks.airflow_client.login import CONNECTION_FIELDS, airflow_login, login_from_connection

    source = f"the connection {names.AIRFLOW_CONNECTION}"
    try:
        connection = BaseHook.get_connection(names.AIRFLOW_CONNECTION)
    except AirflowNotFoundException:
        login = airflow_login(environment)
    else:
        fields = {name: getattr(connection, name) for name in CONNECTION_FIELDS}
        login = login_from_connection(fields, connection.extra_dejson, source=source)
    return AirflowApi(login, timeout_seconds=10.0, should_retry=False)


def _states(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return sorted({str(record["state"]) for record in records.values()})


def _unhealthy_error(verdicts: list[Verdict]) -> TransientError:
    listed = "; ".join(f"{v.kind} {v.name}: {v.cause}: {v.detail}" for v in verdicts)
    steps = " ".join(f"{v.name}: {v.next_step}" for v in verdicts)
    return TransientError("STREAMS_UNHEALTHY", listed, hint=steps)


def _previous_verdicts(context: Context) -> dict[str, Verdict]:
    from deltaworks.control.health.report import verdict_from_record

    # With a map index this is the newest earlier value; without a map index it would be a list of all earlier ones.
    records = context["ti"].xcom_pull(
        task_ids=context["ti"].task_id, key=VERDICTS_XCOM, map_indexes=-1, include_prior_dates=True
    )
    return {dag_id: verdict_from_record(record) for dag_id, record in (records or {}).items()}


def _is_paused(context: Context, dag_id: str) -> bool | None:
    """Returns whether a DAG is paused; None if Airflow does not have it yet."""
    try:
        return bool(context["ti"].get_dag(dag_id).is_paused)
    except Exception:
        return None
