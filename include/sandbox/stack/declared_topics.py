"""Kafka topics, Kinesis streams and the collector that the stack needs for its declared pipelines."""

from __future__ import annotations

from collections.abc import Collection

from deltaworks.specs.base import Reference
from deltaworks.specs.project import load_catalog
from deltaworks.specs.record_sources import KafkaSourceSpec, KinesisSourceSpec
from sandbox.stack.environment import AWS_ENDPOINT, KAFKA_BOOTSTRAP
from sandbox.stack.home import StackHome

_STACK_BOOTSTRAP = Reference(scheme="env", name=KAFKA_BOOTSTRAP)
_STACK_MESSAGING = Reference(scheme="env", name=AWS_ENDPOINT)


def declared_topics(home: StackHome, only: Collection[str] | None = None) -> tuple[str, ...]:
    """Returns the sorted topics that declared pipelines read from the stack's broker.

    A source uses the stack's broker if its `bootstrap_servers` is `env:DELTAWORKS_KAFKA_BOOTSTRAP`; others use an
    external broker with its own topics. Ignores pipelines with an invalid declaration, which cannot run.

    Args:
        only: pipelines that the stack runs; by default those of DELTAWORKS_PIPELINES, or all.

    Raises:
        ConfigError: the environment's declaration is invalid.
    """
    sources = [spec.source for spec in load_catalog(root=home.project, skip_invalid=True, only=only).pipelines.values()]
    stack_sources = [
        source
        for source in sources
        if isinstance(source, KafkaSourceSpec) and source.bootstrap_servers == _STACK_BOOTSTRAP
    ]
    return tuple(sorted({topic for source in stack_sources for topic in source.topics}))


def declared_streams(home: StackHome, only: Collection[str] | None = None) -> tuple[str, ...]:
    """Returns the sorted Kinesis streams that declared pipelines read; none if the environment's `messaging` is
    external.

    Args:
        only: as for `declared_topics`.

    Raises:
        ConfigError: the environment's declaration is invalid.
    """
    catalog = load_catalog(root=home.project, skip_invalid=True, only=only)
    if catalog.environment.messaging.endpoint != _STACK_MESSAGING:
        return ()
    sources = [spec.source for spec in catalog.pipelines.values()]
    return tuple(sorted({source.stream for source in sources if isinstance(source, KinesisSourceSpec)}))


def declared_collector(home: StackHome, only: Collection[str] | None = None) -> str | None:
    """Returns the name of the first collector that feeds one of the stack's pipelines; None if there is none.

    Args:
        only: as for `declared_topics`.

    Raises:
        ConfigError: the environment's declaration is invalid.
    """
    catalog = load_catalog(root=home.project, skip_invalid=True, only=only)
    for name, spec in sorted(catalog.collectors.items()):
        if any(source.pipeline in catalog.pipelines for source in spec.sources.values()):
            return name
    return None
