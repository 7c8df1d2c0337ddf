"""Airflow DAGs <relay>__relay, one continuous relay per file of include/relays, and <relay>__clean if declared.

If the environment declares `kubernetes`, relays are pods and have no DAG.
"""

from __future__ import annotations

from deltaworks.airflow import names
from deltaworks.airflow.continuous_dags import relay_dag
from deltaworks.airflow.invalid_dags import invalid_dag, parsed_catalog
from deltaworks.airflow.scheduled_dags import clean_dag

catalog = parsed_catalog()
for relay in catalog.relays.values():
    if catalog.environment.kubernetes is None:
        dag = relay_dag(relay, catalog.environment)
        globals()[dag.dag_id] = dag
    if relay.clean is not None:
        dag = clean_dag(relay, relay.clean, catalog.environment)
        globals()[dag.dag_id] = dag
for name, error in catalog.invalid_relays().items():
    dag = invalid_dag(names.relay_dag_id(name), error, task_ids=["relay"])
    globals()[dag.dag_id] = dag
for name, error in catalog.invalid_relays("clean").items():
    dag = invalid_dag(names.clean_dag_id(name), error, task_ids=["clean_source"])
    globals()[dag.dag_id] = dag
