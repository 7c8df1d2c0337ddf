"""Airflow DAGs vault__<namespace>, keep_vault__, reveal__ and erase__<namespace>: personal data and its vault.

Where the environment declares `kubernetes`, those that open the vault are CronJobs under the account that may.
"""

from __future__ import annotations

from deltaworks.airflow.parsing import parsed_catalog
from deltaworks.airflow.privacy_dags import erase_dag, reveal_dag, vault_dag, vault_upkeep_dag

catalog = parsed_catalog()
if catalog.environment.privacy is not None:
    for namespace, pipelines in catalog.namespaces.items():
        on_cluster = catalog.environment.kubernetes is not None
        for make in (reveal_dag,) if on_cluster else (vault_dag, vault_upkeep_dag, reveal_dag, erase_dag):
            dag = make(namespace, pipelines, catalog.environment)
            globals()[dag.dag_id] = dag
