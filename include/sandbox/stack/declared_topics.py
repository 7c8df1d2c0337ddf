"""Which topics pipelines read from the stack's own broker: they decide whether it has one."""

from __future__ import annotations

from collections.abc import Collection

from deltaworks.specs.base import Reference
from deltaworks.specs.project import load_catalog
from deltaworks.specs.sources.records import KafkaSourceSpec
from sandbox.stack.environment import KAFKA_BOOTSTRAP
from sandbox.stack.home import StackHome

_OURS = Reference(scheme="env", name=KAFKA_BOOTSTRAP)


def declared_topics(home: StackHome, only: Collection[str] | None = None) -> tuple[str, ...]:
    """The topics of every pipeline whose source in use is the stack's broker, sorted; empty where none is.

    That is one whose `bootstrap_servers` is `env:DELTAWORKS_KAFKA_BOOTSTRAP`: any other address is an external
    broker, which has its own topics. A pipeline with an invalid declaration is ignored: it cannot run.

    Args:
        only: pipelines the stack runs; by default those DELTAWORKS_PIPELINES names, or all.

    Raises:
        ConfigError: the environment itself is declared wrongly.
    """
    sources = [spec.source for spec in load_catalog(root=home.project, tolerant=True, only=only).pipelines.values()]
    ours = [source for source in sources if isinstance(source, KafkaSourceSpec) and source.bootstrap_servers == _OURS]
    return tuple(sorted({topic for source in ours for topic in source.topics}))
