"""Airflow DAGs <pipeline>__find_lost_events: check that every event a collector acknowledged is in the lake."""

from __future__ import annotations

from deltaworks.airflow.invalid_dags import parsed_catalog
from deltaworks.airflow.scheduled_dags import lost_events_dag

catalog = parsed_catalog()
for name in sorted({source.pipeline for spec in catalog.collectors.values() for source in spec.sources.values()}):
    if name in catalog.pipelines:
        dag = lost_events_dag(catalog.pipelines[name], catalog.environment)
        globals()[dag.dag_id] = dag
