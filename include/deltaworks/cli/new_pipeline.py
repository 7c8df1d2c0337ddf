"""`deltaworks pipelines infer` and `new`: infer a pipeline's spec from event files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from deltaworks.cli.output import print_document, print_line

if TYPE_CHECKING:
    from deltaworks.events.inference.pipeline_proposal import Overrides
    from deltaworks.operations.infer_pipeline import InferredPipeline
    from deltaworks.specs.catalog import Catalog

_FILES = "Event files, or folders (recursively)."
_TIME = "Path of the time field; inferred by default."
_TIME_FORMAT = "Format of the time field, in strptime directives; inferred by default."
_TYPE = "Path of the type field; inferred by default."
_ID = "Path of the id field; inferred by default."
_RELAY = "Relay whose bucket receives the files, if there are several."
_MEBIBYTES = "Maximum sample size, in MiB decompressed."


def infer(
    files: list[str] = typer.Argument(help=_FILES),
    write: str = typer.Option("", help="Write include/pipelines/NAME/pipeline.yaml instead of printing it."),
    time: str = typer.Option("", help=_TIME),
    time_format: str = typer.Option("", help=_TIME_FORMAT),
    type: str = typer.Option("", help=_TYPE),  # the parameter's name is the option's name
    id: str = typer.Option("", help=_ID),
    relay: str = typer.Option("", help=_RELAY),
    mebibytes: int = typer.Option(64, min=1, max=4_096, help=_MEBIBYTES),
) -> None:
    """Infer a pipeline from event files: types, times, an id, and a table for each frequent type.

    The spec is tested on the sample; the number of events that it would quarantine is printed, with reasons.
    """
    project = _project()
    fields = _overrides(time=time, time_format=time_format, type=type, id=id)
    inferred = _infer(project, files, write or "events", fields, relay, mebibytes)
    if not write:
        print_document(inferred.text)
        _print_summary(inferred, error=True)
        return
    _write(project, inferred)


def new(
    name: str = typer.Argument(help="Name of the pipeline and of its folder."),
    sample: list[str] = typer.Option(..., "--from", help=f"{_FILES} May be given several times."),
    time: str = typer.Option("", help=_TIME),
    time_format: str = typer.Option("", help=_TIME_FORMAT),
    type: str = typer.Option("", help=_TYPE),
    id: str = typer.Option("", help=_ID),
    relay: str = typer.Option("", help=_RELAY),
    mebibytes: int = typer.Option(64, min=1, max=4_096, help=_MEBIBYTES),
) -> None:
    """Create a pipeline from event files: its folder with a checked pipeline.yaml. Prints the next commands."""
    project = _project()
    fields = _overrides(time=time, time_format=time_format, type=type, id=id)
    inferred = _infer(project, sample, name, fields, relay, mebibytes)
    _write(project, inferred)
    table = f"{name}.{inferred.proposal.tables[0].name}"
    for text in (
        "Next: `deltaworks up` starts its stream; a stack that runs already does so by itself within a minute. Then",
        f"  deltaworks land {name} {' '.join(sample)}",
        f'  deltaworks sql "SELECT event_name, count(*) FROM {table} GROUP BY event_name"',
    ):
        print_line(text)


def _project() -> Catalog:
    """Loads the valid specs. Invalid ones need not be fixed before a new pipeline is created."""
    from deltaworks.specs.project import load_catalog

    return load_catalog(skip_invalid=True, only=())


def _overrides(*, time_format: str, time: str, **fields: str) -> Overrides:
    from deltaworks.events.inference.pipeline_proposal import Overrides
    from deltaworks.specs.times import parse_pattern

    if time_format:
        if not time:
            raise typer.BadParameter("--time-format needs --time")
        try:
            parse_pattern(time_format)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return Overrides(time=time, time_format=time_format, **fields)


def _infer(
    project: Catalog, files: list[str], name: str, overrides: Overrides, relay: str, mebibytes: int
) -> InferredPipeline:
    from deltaworks.operations.infer_pipeline import infer_pipeline
    from deltaworks.specs.base import NAME_PATTERN

    if not NAME_PATTERN.match(name):
        text = f"{name!r}: use lower-case letters, digits and underscores, starting with a letter"
        raise typer.BadParameter(text)
    return infer_pipeline(project, files, name=name, relay=relay, overrides=overrides, sample_bytes=mebibytes << 20)


def _write(project: Catalog, inferred: InferredPipeline) -> None:
    from deltaworks.operations.infer_pipeline import write_pipeline
    from deltaworks.specs.project import load_catalog

    path = write_pipeline(project, inferred)
    load_catalog(root=project.root, skip_invalid=True, only=[inferred.name]).pipeline(inferred.name)
    print_line(f"Written: {path}")
    _print_summary(inferred)


def _print_summary(inferred: InferredPipeline, *, error: bool = False) -> None:
    """Prints the inferred choices, and the events of the sample that would be quarantined."""
    proposal, sample = inferred.proposal, inferred.sample
    scope = "" if sample.is_complete else " from the beginning of the files"
    print_line(f"{proposal.events:,} {sample.source.format} events were sampled{scope}.", error=error)
    name = "one name for all" if proposal.type is None else f"type {proposal.type.path_text}"
    ident = "no id" if proposal.id is None else f"id {proposal.id.path_text}"
    tables = len(proposal.tables)
    tables_text = f"{tables} table{'s' * (tables != 1)}"
    time = f"time {proposal.time.path_text} ({proposal.time.form.format or proposal.time.form.unit})"
    print_line(f"{name}, {time}, {ident}; {tables_text}.", error=error)
    print_line(f"{inferred.quarantined.total():,} of them would be quarantined.", error=error)
    for reason, count in inferred.quarantined.most_common(5):
        print_line(f"  {count:,} {reason}", error=error)
