"""Airflow DAGs <pipeline>__maintenance: OPTIMIZE, VACUUM and gold of each pipeline."""

from __future__ import annotations

from deltaworks.airflow.dag_factory import dags_of
from deltaworks.airflow.maintenance_dags import MAINTENANCE

globals().update(dags_of(MAINTENANCE.dags))
