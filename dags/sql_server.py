"""Airflow DAG deltaworks__sql_server: the SQL server, if the environment declares it."""

from __future__ import annotations

from deltaworks.airflow.continuous_dags import SQL_SERVER
from deltaworks.airflow.dag_factory import dags_of

globals().update(dags_of(SQL_SERVER.dags))
