"""Airflow DAGs that run operations when a person triggers their form: <pipeline>__control, restore, recover, reprocess
and replay, <relay>__control and recover."""

from __future__ import annotations

from deltaworks.airflow.dag_factory import dags_of
from deltaworks.airflow.operation_dags import operation_dags

globals().update(dags_of(operation_dags))
