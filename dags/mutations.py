"""Airflow DAGs <pipeline>__mutations: apply the requests of each pipeline that declares mutations."""

from __future__ import annotations

from deltaworks.airflow.dag_factory import dags_of
from deltaworks.airflow.scheduled_dags import MUTATIONS

globals().update(dags_of(MUTATIONS.dags))
