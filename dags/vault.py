"""Airflow DAGs vault__<namespace>, keep_vault__<namespace> and reveal__<namespace>: the vault of personal data.

Where the environment declares `kubernetes`, the first two are CronJobs under the account that may open the vault.
"""

from __future__ import annotations

from deltaworks.airflow.parsing import parsed_catalog
from deltaworks.airflow.privacy_dags import reveal_dag, vault_dag, vault_upkeep_dag

catalog = parsed_catalog()
if catalog.environment.privacy is not None:
    for namespace, pipelines in catalog.namespaces.items():
        on_cluster = catalog.environment.kubernetes is not None
        for make in (reveal_dag,) if on_cluster else (vault_dag, vault_upkeep_dag, reveal_dag):
            dag = make(namespace, pipelines, catalog.environment)
            globals()[dag.dag_id] = dag
