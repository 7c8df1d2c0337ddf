"""Whose alert it is: the DAG that a person must be able to see for an alert to be shown to them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltaworks.operations.registry import get_operation
from deltaworks.specs.groups import group_of, stream_dag_id

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

#: The DAG of the health check, whose readers see what is of no pipeline: channels, the health check itself.
HEALTH_DAG: Final = "stream_health"
_SEPARATORS = re.compile(r"[ .:/]")


def pipeline_of(catalog: Catalog, subject: str) -> str:
    """The pipeline that a subject is of; empty where it is of none."""
    for word in [word for word in _SEPARATORS.split(subject) if word][:2]:
        name = word.partition("__")[2] or word
        if catalog.declares("pipeline", name):
            return name
    return ""


def alert_dag(catalog: Catalog, subject: str) -> str:
    """The DAG of a subject: `stream games`, `games.purchase`, `gold__games.rebuild` and so on."""
    words = [word for word in _SEPARATORS.split(subject) if word]
    namespace, separator, _ = subject.partition(" ")
    if separator and namespace in catalog.namespaces:
        # A request to be erased: what is due of it is for who may see the requests.
        return get_operation("erase").dag_id(namespace)
    pipeline = pipeline_of(catalog, subject)
    if pipeline and words[0] != "relay":
        return stream_dag_id(pipeline, group_of(catalog, pipeline))
    if words and words[0].startswith("relay__"):
        return words[0]
    if len(words) >= 2 and words[0] in ("relay", "remediation", "feeds"):
        return f"{words[0]}__{words[1]}"
    return HEALTH_DAG
