"""`deltaworks pipelines infer` and `new`: from files of events to a declaration that lands them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from deltaworks.cli.output import print_document, print_line

if TYPE_CHECKING:
    from deltaworks.events.inference.pipeline_proposal import Overrides
    from deltaworks.operations.infer_pipeline import InferredPipeline
    from deltaworks.specs.catalog import Catalog

_FILES = "Files, or folders with everything below them: how producers write."
_TIME = "The field of the time, by its path; chosen where it is left out."
_TIME_FORMAT = "How the field of the time is written, in strptime's directives; chosen where it is left out."
_TYPE = "The field of the type, by its path; chosen where it is left out."
_ID = "The field of the id, by its path; chosen where it is left out."
_RELAY = "The relay whose bucket the files are to land in, where there are several."
_MEBIBYTES = "Look at no more than about so much, decompressed."


def infer(
    files: list[str] = typer.Argument(help=_FILES),
    write: str = typer.Option("", help="Write include/pipelines/NAME/pipeline.yaml, instead of printing it."),
    time: str = typer.Option("", help=_TIME),
    time_format: str = typer.Option("", help=_TIME_FORMAT),
    type: str = typer.Option("", help=_TYPE),  # the option is called so
    id: str = typer.Option("", help=_ID),
    relay: str = typer.Option("", help=_RELAY),
    mebibytes: int = typer.Option(64, min=1, max=4_096, help=_MEBIBYTES),
) -> None:
    """Infer a pipeline from files of events: types, times, an id, and a table for each frequent type.

    It is tried on what was looked at: how many of these events would go to quarantine is said, and why.
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
    name: str = typer.Argument(help="The name of the pipeline, and of its folder."),
    sample: list[str] = typer.Option(..., "--from", help=f"{_FILES} May be given several times."),
    time: str = typer.Option("", help=_TIME),
    time_format: str = typer.Option("", help=_TIME_FORMAT),
    type: str = typer.Option("", help=_TYPE),
    id: str = typer.Option("", help=_ID),
    relay: str = typer.Option("", help=_RELAY),
    mebibytes: int = typer.Option(64, min=1, max=4_096, help=_MEBIBYTES),
) -> None:
    """Make a pipeline from files of events: its folder with pipeline.yaml, checked, and the commands that come next."""
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
    """What is declared, but for what is broken: that need not be mended before a new pipeline is made."""
    from deltaworks.specs.project import load_catalog

    return load_catalog(skip_invalid=True, only=())


def _overrides(*, time_format: str, time: str, **fields: str) -> Overrides:
    from deltaworks.events.inference.pipeline_proposal import Overrides
    from deltaworks.specs.times import parse_pattern

    if time_format:
        if not time:
            raise typer.BadParameter("--time-format needs --time, the field that is written so")
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
    """What was chosen, and what of the sample the pipeline does not land."""
    proposal, sample = inferred.proposal, inferred.sample
    looked = "" if sample.is_complete else ", of the beginning of the files"
    print_line(f"{proposal.events:,} events of {sample.source.format} were looked at{looked}.", error=error)
    name = "one name for all" if proposal.type is None else f"type {proposal.type.path_text}"
    ident = "no id" if proposal.id is None else f"id {proposal.id.path_text}"
    tables = len(proposal.tables)
    declared = f"{tables} table{'s' * (tables != 1)}"
    time = f"time {proposal.time.path_text} ({proposal.time.form.format or proposal.time.form.unit})"
    print_line(f"{name}, {time}, {ident}; {declared}.", error=error)
    print_line(f"{inferred.quarantined.total():,} of them would go to quarantine.", error=error)
    for reason, count in inferred.quarantined.most_common(5):
        print_line(f"  {count:,} {reason}", error=error)
