"""The DAG of the process that judges the rules of all pipelines: endless, as relays are."""

from __future__ import annotations

from airflow.sdk import DAG

from deltaworks.airflow.job_settings import endless_dag_settings, endless_retries, pool_settings
from deltaworks.airflow.operators import ProcessOperator
from deltaworks.airflow.runbooks import rules_runbook
from deltaworks.control.rule_paths import RULES_DAG
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.shares import RELAY_POOL, RELAY_PRIORITY


def alert_rules_dag(catalog: Catalog) -> DAG | None:
    """The DAG that judges every rule; None where no pipeline declares one."""
    judged = {name: spec for name, spec in catalog.pipelines.items() if spec.alerts}
    if not judged:
        return None
    environment = catalog.environment
    owners = ", ".join(sorted({spec.owner for spec in judged.values()}))
    with DAG(
        dag_id=RULES_DAG,
        description=f"Judges the rules of {', '.join(judged)}",
        doc_md=rules_runbook(judged),
        **endless_dag_settings(owners, tags=("rules", *judged)),
    ) as dag:
        ProcessOperator(
            task_id="judge",
            module="deltaworks.judging",
            environment=environment,
            **pool_settings(environment.shares.relay.pool or RELAY_POOL, priority=RELAY_PRIORITY),
            **endless_retries(),
        )
    return dag
