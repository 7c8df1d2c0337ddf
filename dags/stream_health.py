"""Airflow DAG stream_health: judges every relay and stream each minute."""

from __future__ import annotations

from deltaworks.airflow.health_dags import health_dag

dag = health_dag()
