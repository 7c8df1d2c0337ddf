"""Airflow DAG deltaworks__spark_connect: the Spark Connect server, if the environment declares it."""

from __future__ import annotations

from deltaworks.airflow.continuous_dags import SPARK_CONNECT
from deltaworks.airflow.dag_factory import dags_of

globals().update(dags_of(SPARK_CONNECT.dags))
