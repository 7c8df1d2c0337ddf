"""Airflow DAGs <operation>__<pipeline> and <operation>__<relay>: what people ask of one, with a form of its options."""

from __future__ import annotations

from deltaworks.airflow.misdeclared_dags import misdeclared_operation_dags
from deltaworks.airflow.operation_dags import offered_operations, operated_pipelines, operation_dag, relay_operations
from deltaworks.airflow.parsing import parsed_catalog

catalog = parsed_catalog()
for pipeline in operated_pipelines(catalog):
    for operation in offered_operations(pipeline):
        dag = operation_dag(operation, pipeline, catalog.environment)
        globals()[dag.dag_id] = dag
for relay in catalog.relays.values():
    for operation in relay_operations():
        dag = operation_dag(operation, relay, catalog.environment)
        globals()[dag.dag_id] = dag
for dag in misdeclared_operation_dags(catalog):
    globals()[dag.dag_id] = dag
