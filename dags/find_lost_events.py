"""Airflow DAGs <pipeline>__find_lost_events: check that every event a collector acknowledged is in the lake."""

from __future__ import annotations

from deltaworks.airflow.dag_factory import dags_of
from deltaworks.airflow.scheduled_dags import LOST_EVENTS

globals().update(dags_of(LOST_EVENTS.dags))
