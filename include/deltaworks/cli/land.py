"""`deltaworks land`: uploads event files to the bucket that a pipeline reads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from deltaworks.cli.context import PipelineArgument, catalog
from deltaworks.cli.output import CommandOutput, listing_command, progress_bar
from deltaworks.control.listing import Cell, Listing, byte_count_cell, count_cell, format_bytes
from deltaworks.errors import ContractError
from deltaworks.specs.base import shorten_names

if TYPE_CHECKING:
    from deltaworks.sources.objects.land import LandedFile
    from deltaworks.sources.objects.landed_inputs import Input


class WaitStage(StrEnum):
    """How far landed events are followed."""

    bronze = "bronze"
    gold = "gold"


@listing_command
def land(
    pipeline: PipelineArgument,
    files: list[str] = typer.Argument(help="Files, folders (recursively), or - for standard input."),
    object_mib: int = typer.Option(16, min=1, max=512, help="Approximate uncompressed size of an object in MiB."),
    folder: str = typer.Option("", help="Folder below the pipeline's prefix, such as day=2026-01-31."),
    force: bool = typer.Option(False, help="Upload existing files again, under new names."),
    wait: WaitStage | None = typer.Option(None, help="Return when the events are in bronze, or in gold."),
    wait_seconds: float = typer.Option(300, min=1, help="Give up waiting after so many seconds; the objects stay."),
) -> CommandOutput:
    """Upload event files to the bucket that a pipeline reads; - is standard input.

    Large files become several objects; events are not split. Existing objects with the same content are skipped.
    Exits with 11 if a file has no event that the pipeline can read, and with 21 if `--wait` gives up.
    """
    from deltaworks.sources.objects.land import land as land_files
    from deltaworks.sources.objects.land import require_file_source
    from deltaworks.sources.objects.landed_inputs import find_inputs
    from deltaworks.sources.objects.landing_store import landing_store

    project = catalog()
    source = require_file_source(project.pipeline(pipeline))
    inputs = find_inputs(files, standard_input=sys.stdin.buffer)
    store = landing_store(project.environment.landing.with_bucket(source.bucket))
    with progress_bar(_total(inputs)) as report:
        read_bytes_by_file: dict[str, int] = {}

        def report_progress(file: Input, landed: LandedFile) -> None:
            read_bytes_by_file[str(file)] = landed.read_bytes
            objects = landed.objects + landed.existing
            report(sum(read_bytes_by_file.values()), f"{file}: {objects:,} objects, {format_bytes(landed.read_bytes)}")

        results = land_files(
            inputs,
            source,
            store,
            object_bytes=object_mib << 20,
            subfolder=folder,
            force=force,
            progress=report_progress,
        )
    parts: list[str | Listing] = [_listing(results)]
    parts += _summary_lines(pipeline, source.relay, source.display_name(), results)
    if wait is not None and (keys := [key for result in results for key in result.keys]):
        parts.append(_wait(pipeline, keys, wait, wait_seconds))
    without_events = [
        result.file for result in results if result.events is not None and result.events == result.unreadable
    ]
    if without_events:
        parts.append(f"No event of {shorten_names(without_events)} can be read as {source.format}.")
    return CommandOutput(parts, exit_code=ContractError.exit_code if without_events else 0)


def _wait(pipeline: str, keys: Sequence[str], stage: WaitStage, wait_seconds: float) -> str:
    from deltaworks.operations.completion import LandedObjects, wait_until_complete

    seconds = wait_until_complete(LandedObjects(catalog(), pipeline, keys), stage.value, wait_seconds=wait_seconds)
    return f"All of their events are in {stage.value}, {seconds:.1f} s later."


def _total(inputs: Sequence[Input]) -> int | None:
    sizes = [item.size_bytes for item in inputs]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _listing(results: Sequence[LandedFile]) -> Listing:
    listing = Listing(("file", "objects", "present", "events", "unreadable", "read bytes", "landed bytes"))
    for result in results:
        listing.add(
            result.file,
            count_cell(result.objects),
            count_cell(result.existing),
            _count_or_unknown(result.events),
            _count_or_unknown(result.unreadable),
            byte_count_cell(result.read_bytes),
            byte_count_cell(result.landed_bytes),
        )
    return listing


def _count_or_unknown(number: int | None) -> Cell:
    return Cell(None, "?") if number is None else count_cell(number)


def _summary_lines(pipeline: str, relay: str, location: str, results: Sequence[LandedFile]) -> list[str]:
    objects, existing = sum(item.objects for item in results), sum(item.existing for item in results)
    events, unreadable = sum(item.events or 0 for item in results), sum(item.unreadable or 0 for item in results)
    sentences = [f"{objects:,} objects landed at {location}; the files have {events:,} events."]
    if existing:
        sentences.append(f"{existing:,} objects already exist with this content; use --force to upload them again.")
    if unreadable:
        sentences.append(
            f"{unreadable:,} values are not events; they will be in `deltaworks quarantine list {pipeline}`."
        )
    if objects:
        sentences.append(f"Follow them: `deltaworks files list {relay}`, `deltaworks batches {pipeline}`.")
    return sentences
