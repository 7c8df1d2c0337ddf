"""Creates missing sources of declared pipelines: Kafka topics, Kinesis streams and sample IP databases."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from deltaworks.specs.project import PIPELINES_VARIABLE
from sandbox.servers.kafka_broker import create_topics
from sandbox.stack.declared_topics import declared_streams, declared_topics
from sandbox.stack.environment import KAFKA_BOOTSTRAP
from sandbox.stack.home import StackHome
from sandbox.stack.sample_databases import put_sample_databases
from sandbox.stack.stack_programs import HealthChecks


def create_sources(
    home: StackHome, environment: Mapping[str, str], checks: HealthChecks, progress: Callable[[str], None]
) -> None:
    """Creates missing sources. A stream that starts without its topic retries only after minutes."""
    bootstrap = environment.get(KAFKA_BOOTSTRAP)
    pipelines = [name for name in environment.get(PIPELINES_VARIABLE, "").split(",") if name] or None
    topics = declared_topics(home, pipelines)
    if created_streams := checks.create_streams(declared_streams(home, pipelines)):
        progress(f"Created Kinesis streams: {', '.join(created_streams)}")
    if databases := put_sample_databases(home, pipelines):
        progress(f"Put sample IP databases with generated networks: {', '.join(databases)}")
    if topics and bootstrap is None:
        progress(
            "Warning: a pipeline reads Kafka, but this stack was started without a broker. Run `deltaworks "
            "down`, then `up`."
        )
    elif bootstrap is not None and (created := create_topics(bootstrap, topics)):
        progress(f"Created topics: {', '.join(created)}")
