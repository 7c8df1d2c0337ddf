"""Airflow DAGs rollback__<pipeline>: put tables back as they were, once a person has approved what goes."""

from __future__ import annotations

from deltaworks.airflow.rollback_dags import rollback_dag
from deltaworks.specs.catalog import load_catalog

catalog = load_catalog(tolerant=True)
for pipeline in catalog.pipelines.values():
    dag = rollback_dag(pipeline, catalog.environment)
    globals()[dag.dag_id] = dag
