"""Airflow DAG rules: one continuous process that evaluates the rules of all pipelines."""

from __future__ import annotations

from deltaworks.airflow.continuous_dags import RULES
from deltaworks.airflow.dag_factory import dags_of

globals().update(dags_of(RULES.dags))
