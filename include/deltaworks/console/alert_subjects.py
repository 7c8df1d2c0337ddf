"""Finds the DAG whose readers may see an alert, by the alert's subject."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltaworks.operations.registry import get_operation
from deltaworks.specs.groups import group_of, stream_dag_id

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

#: The health DAG. Its readers see alerts that belong to no pipeline, such as those of channels and of the health check.
HEALTH_DAG: Final = "deltaworks__health"
_SEPARATORS = re.compile(r"[ .:/]")


def pipeline_of(catalog: Catalog, subject: str) -> str:
    """Returns the pipeline that a subject belongs to; empty if there is none."""
    for word in [word for word in _SEPARATORS.split(subject) if word][:2]:
        name = word.partition("__")[2] or word
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
    if words and words[0].startswith("relay__"):
        return words[0]
    if len(words) >= 2 and words[0] in ("relay", "remediation", "feeds"):
        return f"{words[0]}__{words[1]}"
    return HEALTH_DAG
