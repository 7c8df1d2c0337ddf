"""Airflow DAGs <namespace>__vault, reveal and erase: operations on personal data and its vault.

If the environment declares `kubernetes`, operations that open the vault are CronJobs with a separate service account.
"""

from __future__ import annotations

from deltaworks.airflow.invalid_dags import parsed_catalog
from deltaworks.airflow.privacy_dags import namespace_dags

catalog = parsed_catalog()
if catalog.environment.privacy is not None:
    for namespace, pipelines in catalog.namespaces.items():
        for dag in namespace_dags(namespace, pipelines, catalog.environment):
            globals()[dag.dag_id] = dag
