"""`deltaworks wire`: connects buckets to a relay's queue, and prints the IAM policies."""

from __future__ import annotations

import typer

from deltaworks.cli.context import catalog
from deltaworks.cli.output import print_document, print_heading, print_line, print_listing
from deltaworks.control.listing import Listing, json_text
from deltaworks.sources.objects.relay.queue import NotificationQueue, queue_warnings
from deltaworks.sources.objects.relay.wiring import Wiring, relay_policy, stream_policy, wiring_policy


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
