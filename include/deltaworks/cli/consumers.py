"""`deltaworks consumers`: list and deregister consumers of a pipeline's Kinesis stream."""

from __future__ import annotations

import typer

from deltaworks.cli.context import PipelineArgument, catalog
from deltaworks.cli.output import listing_command, print_line
from deltaworks.control.listing import Listing
from deltaworks.errors import ConfigError
from deltaworks.sources.kinesis.client import KinesisStream
from deltaworks.specs.sources.records import KinesisSourceSpec

app = typer.Typer(no_args_is_help=True)


@app.command("list")
@listing_command
def list_consumers(pipeline: PipelineArgument) -> Listing:
    """List all registered consumers of the pipeline's stream."""
    source, stream = _stream(pipeline)
    listing = Listing(("consumer", "state", "registered", "whose"))
    for consumer in stream.consumers():
        is_own = consumer.name == source.consumer_name_for(pipeline)
        created = consumer.created.isoformat(timespec="seconds")
        listing.add(consumer.name, consumer.status, created, "this pipeline's" if is_own else "")
    return listing


@app.command()
def deregister(
    pipeline: PipelineArgument,
    name: str = typer.Option("", help="Name of the consumer; by default the pipeline's own."),
    dry_run: bool = typer.Option(True, help="Only print the consumer; --no-dry-run deregisters it."),
) -> None:
    """Deregister an unused consumer. A stream that reads through it fails; its next start registers it again."""
    source, stream = _stream(pipeline)
    name = name or source.consumer_name_for(pipeline)
    consumer = stream.consumer(name)
    if consumer is None:
        print_line(f"{source.stream} has no consumer {name}: nothing to do.")
        return
    if dry_run:
        print_line(f"Consumer {name} of {source.stream} would be deregistered; use --no-dry-run.")
        return
    stream.deregister_consumer(name)
    print_line(f"Consumer {name} of {source.stream} is deregistered.")


def _stream(pipeline: str) -> tuple[KinesisSourceSpec, KinesisStream]:
    project = catalog(required_service="messaging")
    source = project.pipeline(pipeline).source
    if not isinstance(source, KinesisSourceSpec):
        raise ConfigError(
            "PIPELINE_WITHOUT_CONSUMERS",
            f"{pipeline} reads {source.kind}: only Kinesis streams have registered consumers.",
        )
    return source, KinesisStream(project.environment.messaging, name=source.stream)
