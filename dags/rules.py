"""Airflow DAG rules: one endless process that judges the rules of all pipelines that declare any."""

from __future__ import annotations

from deltaworks.airflow.continuous_dags import rules_dag
from deltaworks.airflow.parsing import parsed_catalog

dag = rules_dag(parsed_catalog())
