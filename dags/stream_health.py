"""Airflow DAG deltaworks__health: checks every relay and stream, and waiting mutation requests, each minute."""

from __future__ import annotations

from deltaworks.airflow.health_dags import health_dag
from deltaworks.specs.project import load_catalog

catalog = load_catalog(skip_invalid=True)
mutable = any(pipeline.mutations is not None for pipeline in catalog.pipelines.values())
dag = health_dag(environment=catalog.environment, mutations=mutable)
