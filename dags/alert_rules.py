"""Airflow DAG rules__judging: one endless process that judges the rules of all pipelines that declare any."""

from __future__ import annotations

from deltaworks.airflow.alert_rule_dags import alert_rules_dag
from deltaworks.airflow.parsing import parsed_catalog

dag = alert_rules_dag(parsed_catalog())
