"""Airflow DAG rules: one continuous process that evaluates the rules of all pipelines."""

from __future__ import annotations

from deltaworks.airflow.continuous_dags import rules_dag
from deltaworks.airflow.invalid_dags import parsed_catalog

dag = rules_dag(parsed_catalog())
