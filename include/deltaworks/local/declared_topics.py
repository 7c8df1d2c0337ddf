"""Which topics the pipelines of a stack's project read: they decide whether the stack has a Kafka broker."""

from __future__ import annotations

from deltaworks.local.home import StackHome
from deltaworks.specs.catalog import load_catalog
from deltaworks.specs.source import KafkaSourceSpec


def declared_topics(home: StackHome) -> tuple[str, ...]:
    """The topics of every pipeline whose source in use is Kafka, sorted; empty where none is.

    A pipeline that is declared wrongly counts for nothing here: it cannot run.

    Raises:
        ConfigError: the environment itself is declared wrongly.
    """
    sources = (spec.source for spec in load_catalog(root=home.project, tolerant=True).pipelines.values())
    return tuple(sorted({topic for each in sources if isinstance(each, KafkaSourceSpec) for topic in each.topics}))
