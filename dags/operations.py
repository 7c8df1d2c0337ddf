"""Airflow DAGs <operation>__<pipeline> and <operation>__<relay>: what people ask of one, with a form of its options."""

from __future__ import annotations

from deltaworks.airflow.misdeclared_dags import misdeclared_operation_dags
from deltaworks.airflow.operation_dags import offered_operations, operation_dag, relay_operations
from deltaworks.specs.project import load_catalog

catalog = load_catalog(tolerant=True)
for pipeline in catalog.pipelines.values():
    for operation in offered_operations(pipeline):
        dag = operation_dag(operation, pipeline, catalog.environment)
        globals()[dag.dag_id] = dag
for relay in catalog.relays.values():
    for operation in relay_operations():
        dag = operation_dag(operation, relay, catalog.environment)
        globals()[dag.dag_id] = dag
for dag in misdeclared_operation_dags(catalog):
    globals()[dag.dag_id] = dag
