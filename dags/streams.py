"""Airflow DAGs <pipeline>__stream, one continuous Spark stream each, and <group>__stream_group for groups of
streams."""

from __future__ import annotations

from deltaworks.airflow import names
from deltaworks.airflow.continuous_dags import group_dag, stream_dag
from deltaworks.airflow.invalid_dags import invalid_dag, parsed_catalog
from deltaworks.specs.groups import stream_groups

catalog = parsed_catalog()
groups = stream_groups(catalog)
grouped = {name for group in groups.values() for name in (*group.members, *group.invalid_members)}
for pipeline in catalog.pipelines.values():
    if pipeline.pipeline not in grouped:
        dag = stream_dag(pipeline, catalog.environment)
        globals()[dag.dag_id] = dag
for name, error in catalog.invalid_pipelines().items():
    if name not in grouped:
        dag = invalid_dag(names.stream_dag_id(name), error, task_ids=["ingest"])
        globals()[dag.dag_id] = dag
for group in groups.values():
    if group.members:
        dag = group_dag(group, catalog.environment)
    else:
        dag = invalid_dag(group.dag_id, next(iter(group.invalid_members.values())), task_ids=["ingest"])
    globals()[dag.dag_id] = dag
