"""Airflow DAGs vault__<namespace>, keep_vault__<namespace> and reveal__<namespace>: the vault of personal data."""

from __future__ import annotations

from deltaworks.airflow.parsing import parsed_catalog
from deltaworks.airflow.privacy_dags import reveal_dag, vault_dag, vault_upkeep_dag

catalog = parsed_catalog()
if catalog.environment.privacy is not None:
    for namespace, pipelines in catalog.namespaces.items():
        for make in (vault_dag, vault_upkeep_dag, reveal_dag):
            dag = make(namespace, pipelines, catalog.environment)
            globals()[dag.dag_id] = dag
