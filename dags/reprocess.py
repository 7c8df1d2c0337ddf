"""Airflow DAGs reprocess__<pipeline>: read what has landed again, in place or into shadow tables."""

from __future__ import annotations

from deltaworks.airflow.reprocess_dags import reprocess_dag
from deltaworks.specs.catalog import load_catalog

catalog = load_catalog(tolerant=True)
for pipeline in catalog.pipelines.values():
    dag = reprocess_dag(pipeline, catalog.environment)
    globals()[dag.dag_id] = dag
