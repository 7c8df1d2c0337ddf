"""One DAG per pipeline's stream: an endless spark-submit job in a pool of its own."""

from __future__ import annotations

from airflow.sdk import DAG

from deltaworks.airflow import names
from deltaworks.airflow.operators import SparkJobOperator
from deltaworks.airflow.relay_dags import FAILED_RUNS_BEFORE_PAUSE, endless_retries
from deltaworks.airflow.runbooks import stream_runbook
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec


def stream_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """The DAG of one pipeline's stream. Its task has no time-out: the job ends itself."""
    with DAG(
        dag_id=names.stream_dag_id(spec.pipeline),
        description=spec.description,
        doc_md=stream_runbook(spec),
        schedule="@continuous",
        start_date=names.START_DATE,
        catchup=False,
        max_active_runs=1,
        max_consecutive_failed_dag_runs=FAILED_RUNS_BEFORE_PAUSE,
        is_paused_upon_creation=False,
        tags=sorted({"stream", "endless", spec.pipeline, *spec.tags}),
        default_args={"owner": spec.owner},
    ) as dag:
        SparkJobOperator(
            task_id="ingest",
            job="ingest_stream",
            pipeline=spec.pipeline,
            environment=environment,
            name="{{ dag.dag_id }}",
            driver_memory=spec.stream.driver_memory,
            pool=names.POOL_STREAMS,
            execution_timeout=None,
            **endless_retries(),
        )
    return dag
