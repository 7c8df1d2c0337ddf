"""Airflow DAGs that run operations when a person triggers their form: <pipeline>__control, restore, recover, reprocess
and replay, <relay>__control and recover."""

from __future__ import annotations

from deltaworks.airflow.invalid_dags import invalid_operation_dags, parsed_catalog
from deltaworks.airflow.operation_dags import pipelines_with_operation_dags, triggered_dag
from deltaworks.operations.dag_forms import pipeline_forms, relay_forms

catalog = parsed_catalog()
for pipeline in pipelines_with_operation_dags(catalog):
    for form in pipeline_forms(pipeline):
        dag = triggered_dag(form, pipeline, catalog.environment)
        globals()[dag.dag_id] = dag
for relay in catalog.relays.values():
    for form in relay_forms():
        dag = triggered_dag(form, relay, catalog.environment)
        globals()[dag.dag_id] = dag
for dag in invalid_operation_dags(catalog):
    globals()[dag.dag_id] = dag
