"""Airflow DAGs <relay>__relay, one continuous relay per file of include/relays, and <relay>__clean if declared.

If the environment declares `kubernetes`, relays are pods and have no DAG.
"""

from __future__ import annotations

from deltaworks.airflow.continuous_dags import RELAY
from deltaworks.airflow.dag_factory import dags_of
from deltaworks.airflow.scheduled_dags import CLEAN

globals().update(dags_of(RELAY.dags, CLEAN.dags))
