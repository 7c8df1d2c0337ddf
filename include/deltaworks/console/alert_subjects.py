"""Finds the DAG whose readers may see an alert, by the alert's subject."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from deltaworks.operations.registry import get_operation
from deltaworks.specs.dag_ids import HEALTH_DAG, dag_id, split_dag_id
from deltaworks.specs.groups import group_of, stream_dag_id

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

_SEPARATORS = re.compile(r"[ .:/]")


def pipeline_of(catalog: Catalog, subject: str) -> str:
    """Returns the pipeline that a subject belongs to; empty if there is none."""
    for word in [word for word in _SEPARATORS.split(subject) if word][:2]:
        name = split_dag_id(word)[0] or word
        if catalog.declares("pipeline", name):
            return name
    return ""


def alert_dag(catalog: Catalog, subject: str) -> str:
    """Returns the DAG whose readers may see alerts on a subject such as `stream games`, `games.purchase` or
    `games__gold.rebuild`.
    """
    words = [word for word in _SEPARATORS.split(subject) if word]
    namespace, separator, _ = subject.partition(" ")
    if separator and namespace in catalog.namespaces:
        # The subject is an erasure request. Readers of the erasure DAG see its alerts.
        return get_operation("erase").dag_id(namespace)
    pipeline = pipeline_of(catalog, subject)
    if pipeline and words[0] != "relay":
        return stream_dag_id(pipeline, group_of(catalog, pipeline))
    if words and split_dag_id(words[0])[1] == "relay":
        return words[0]
    if len(words) >= 2 and words[0] in ("relay", "remediation", "feeds"):
        return dag_id(words[1], words[0])
    return HEALTH_DAG
