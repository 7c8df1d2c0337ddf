"""What is declared that decides what the stack has: topics a broker, collectors the program that takes events."""

from __future__ import annotations

from collections.abc import Collection

from deltaworks.specs.base import Reference
from deltaworks.specs.project import load_catalog
from deltaworks.specs.sources.records import KafkaSourceSpec, KinesisSourceSpec
from sandbox.stack.environment import AWS_ENDPOINT, KAFKA_BOOTSTRAP
from sandbox.stack.home import StackHome

_STACK_BOOTSTRAP = Reference(scheme="env", name=KAFKA_BOOTSTRAP)
_OUR_MESSAGING = Reference(scheme="env", name=AWS_ENDPOINT)


def declared_topics(home: StackHome, only: Collection[str] | None = None) -> tuple[str, ...]:
    """The topics of every pipeline whose source in use is the stack's broker, sorted; empty where none is.

    That is one whose `bootstrap_servers` is `env:DELTAWORKS_KAFKA_BOOTSTRAP`: any other address is an external
    broker, which has its own topics. A pipeline with an invalid declaration is ignored: it cannot run.

    Args:
        only: pipelines the stack runs; by default those DELTAWORKS_PIPELINES names, or all.

    Raises:
        ConfigError: the environment itself is declared wrongly.
    """
    sources = [spec.source for spec in load_catalog(root=home.project, skip_invalid=True, only=only).pipelines.values()]
    ours = [
        source
        for source in sources
        if isinstance(source, KafkaSourceSpec) and source.bootstrap_servers == _STACK_BOOTSTRAP
    ]
    return tuple(sorted({topic for source in ours for topic in source.topics}))


def declared_streams(home: StackHome, only: Collection[str] | None = None) -> tuple[str, ...]:
    """The Kinesis streams of every pipeline whose source in use is one, sorted; none where the environment's
    `messaging` is another than the stack's.

    Args:
        only: as for `declared_topics`.

    Raises:
        ConfigError: the environment itself is declared wrongly.
    """
    catalog = load_catalog(root=home.project, skip_invalid=True, only=only)
    if catalog.environment.messaging.endpoint != _OUR_MESSAGING:
        return ()
    sources = [spec.source for spec in catalog.pipelines.values()]
    return tuple(sorted({source.stream for source in sources if isinstance(source, KinesisSourceSpec)}))


def declared_collector(home: StackHome, only: Collection[str] | None = None) -> str | None:
    """The collector that the stack runs: the first that feeds a pipeline which runs; None where none does.

    Args:
        only: as for `declared_topics`.

    Raises:
        ConfigError: the environment itself is declared wrongly.
    """
    catalog = load_catalog(root=home.project, skip_invalid=True, only=only)
    for name, spec in sorted(catalog.collectors.items()):
        if any(source.pipeline in catalog.pipelines for source in spec.sources.values()):
            return name
    return None
