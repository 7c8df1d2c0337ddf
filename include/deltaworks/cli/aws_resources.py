"""`deltaworks wire` connects buckets to a relay's queue and prints the IAM policies; `deltaworks consumers` lists and
deregisters the consumers of a pipeline's Kinesis stream.
"""

from __future__ import annotations

import typer

from deltaworks.cli.context import PipelineArgument, catalog
from deltaworks.cli.output import listing_command, print_document, print_heading, print_line, print_listing
from deltaworks.control.listing import Listing, json_text
from deltaworks.errors import ConfigError
from deltaworks.sources.kinesis.client import KinesisStream
from deltaworks.sources.objects.relay.queue import NotificationQueue, queue_warnings
from deltaworks.sources.objects.relay.wiring import Wiring, relay_policy, stream_policy, wiring_policy
from deltaworks.specs.record_sources import KinesisSourceSpec


def wire(
    relay: str,
    name: str = typer.Option("", help="Name of queue and topic; by default deltaworks-RELAY."),
    prefix: str = typer.Option("", help="Send events only for keys with this prefix."),
    policies: bool = typer.Option(True, help="Print the IAM policies of relay, streams and this command."),
    dry_run: bool = typer.Option(True, help="Only list missing parts; --no-dry-run creates them."),
) -> None:
    """Connect a relay's buckets to its queue: S3 to SNS to SQS. Existing notifications are kept; nothing is deleted."""
    project = catalog(required_service="messaging")
    spec, lake = project.relay(relay), project.environment.lake
    name = name or f"deltaworks-{relay.replace('_', '-')}"
    wiring = Wiring(project.environment.messaging, name=name, buckets=spec.buckets, prefix=prefix)
    wired = wiring.wire(dry_run=dry_run)
    steps = Listing(("part", "name", "state" if dry_run else "was"))
    for step in wired.steps:
        steps.add(step.kind, step.name, step.state)
    print_listing(steps)
    if dry_run and wired.pending_count:
        print_line(f"{wired.pending_count} to create; use --no-dry-run.")
    elif wired.pending_count:
        print_line(f"{wired.pending_count} created.")
    if wired.queue_url:
        print_line(f"queue_url of include/relays/{relay}.yaml: {wired.queue_url}")
        queue = NotificationQueue(
            project.environment.messaging, wired.queue_url, visibility_seconds=spec.visibility_seconds
        )
        for warning in queue_warnings(queue):
            print_heading(warning.condition, warning.message, style="bold yellow")
            print_heading("Next:", warning.hint)
    if policies:
        arns, partition = wiring.arns, wiring.partition
        for title, policy in {
            "relay": relay_policy(
                spec, lake, queue_arn=arns.queue, dead_letter_arn=arns.dead_letters, partition=partition
            ),
            "streams and maintenance": stream_policy(spec, lake, partition=partition),
            "this command": wiring_policy(
                spec.buckets,
                queue_arn=arns.queue,
                dead_letter_arn=arns.dead_letters,
                topic_arn=arns.topic,
                partition=partition,
            ),
        }.items():
            print_line(f"Policy of {title}:", style="bold")
            print_document(json_text(policy))


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
