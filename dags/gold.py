"""Airflow DAGs <pipeline>__gold: rebuild the gold tables of each pipeline that declares any."""

from __future__ import annotations

from deltaworks.airflow.dag_factory import dags_of
from deltaworks.airflow.scheduled_dags import GOLD

globals().update(dags_of(GOLD.dags))
