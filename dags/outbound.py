"""Airflow DAGs <pipeline>__feeds, one continuous process for a pipeline's feeds, and <name>__remediation."""

from __future__ import annotations

from deltaworks.airflow import names
from deltaworks.airflow.continuous_dags import feeds_dag, remediation_dag
from deltaworks.airflow.invalid_dags import invalid_dag, parsed_catalog

catalog = parsed_catalog()
for spec in catalog.pipelines.values():
    if spec.feeds:
        dag = feeds_dag(spec, catalog.environment)
        globals()[dag.dag_id] = dag
for remediation in catalog.environment.remediations:
    dag = remediation_dag(remediation, catalog.environment)
    globals()[dag.dag_id] = dag
for name, error in catalog.invalid_pipelines("feeds").items():
    dag = invalid_dag(names.feeds_dag_id(name), error, task_ids=["feeds"])
    globals()[dag.dag_id] = dag
