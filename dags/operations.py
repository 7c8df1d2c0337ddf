"""Airflow DAGs <operation>__<pipeline> and <operation>__<relay>: operations triggered manually with a form."""

from __future__ import annotations

from deltaworks.airflow.invalid_dags import invalid_operation_dags
from deltaworks.airflow.operation_dags import (
    available_operations,
    operation_dag,
    pipelines_with_operation_dags,
    relay_operations,
)
from deltaworks.airflow.parsing import parsed_catalog

catalog = parsed_catalog()
for pipeline in pipelines_with_operation_dags(catalog):
    for operation in available_operations(pipeline):
        dag = operation_dag(operation, pipeline, catalog.environment)
        globals()[dag.dag_id] = dag
for relay in catalog.relays.values():
    for operation in relay_operations():
        dag = operation_dag(operation, relay, catalog.environment)
        globals()[dag.dag_id] = dag
for dag in invalid_operation_dags(catalog):
    globals()[dag.dag_id] = dag
