"""Airflow DAGs that run operations when a person triggers their form: <pipeline>__control, restore, recover, reprocess
and replay, <relay>__control and recover."""

from __future__ import annotations

from deltaworks.airflow.invalid_dags import invalid_operation_dags, parsed_catalog
from deltaworks.airflow.operation_dags import triggered_dags

catalog = parsed_catalog()
for dag in (*triggered_dags(catalog), *invalid_operation_dags(catalog)):
    globals()[dag.dag_id] = dag
