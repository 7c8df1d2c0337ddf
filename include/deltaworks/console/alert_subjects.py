"""Whose alert it is: the DAG that a person must be able to see for an alert to be shown to them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltaworks.specs.groups import group_of, stream_dag_id

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog

#: The DAG of the health check, whose readers see what is of no pipeline: channels, the health check itself.
HEALTH_DAG: Final = "stream_health"
_WORDS = re.compile(r"[ .:/]")


def alert_dag(catalog: Catalog, subject: str) -> str:
    """The DAG of a subject: `stream games`, `games.purchase`, `gold__games.rebuild` and so on."""
    words = [word for word in _WORDS.split(subject) if word]
    for word in words[:2]:
        if catalog.declares("pipeline", word):
            return stream_dag_id(word, group_of(catalog, word))
        kind, _, name = word.partition("__")
        if name and catalog.declares("pipeline", name):
            return stream_dag_id(name, group_of(catalog, name))
        if name and kind == "relay":
            return word
    if len(words) >= 2 and words[0] in ("relay", "remediation", "feeds"):
        return f"{words[0]}__{words[1]}"
    return HEALTH_DAG
