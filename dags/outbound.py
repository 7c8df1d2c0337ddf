"""Airflow DAGs <pipeline>__feeds, one continuous process for a pipeline's feeds, and <name>__remediation."""

from __future__ import annotations

from deltaworks.airflow.continuous_dags import FEEDS, REMEDIATION
from deltaworks.airflow.dag_factory import dags_of

globals().update(dags_of(FEEDS.dags, REMEDIATION.dags))
