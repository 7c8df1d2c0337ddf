"""Airflow DAGs <namespace>__vault, reveal and erase: operations on personal data and its vault.

If the environment declares `kubernetes`, operations that open the vault are CronJobs with a separate service account.
"""

from __future__ import annotations

from deltaworks.airflow.dag_factory import dags_of
from deltaworks.airflow.privacy_dags import namespace_dags

globals().update(dags_of(namespace_dags))
