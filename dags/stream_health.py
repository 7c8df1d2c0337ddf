"""Airflow DAG deltaworks__health: checks every relay and stream, and waiting mutation requests, each minute."""

from __future__ import annotations

from deltaworks.airflow.dag_factory import dags_of
from deltaworks.airflow.health_dags import HEALTH

globals().update(dags_of(HEALTH.dags))
