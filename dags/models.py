"""Airflow DAGs <pipeline>__models: train the models of each pipeline that declares any."""

from __future__ import annotations

from deltaworks.airflow.dag_factory import dags_of
from deltaworks.airflow.scheduled_dags import MODELS

globals().update(dags_of(MODELS.dags))
