"""Airflow DAGs <pipeline>__stream, one continuous Spark stream each, and <group>__stream_group for groups of
streams."""

from __future__ import annotations

from deltaworks.airflow.continuous_dags import STREAM, STREAM_GROUP
from deltaworks.airflow.dag_factory import dags_of

globals().update(dags_of(STREAM.dags, STREAM_GROUP.dags))
