"""Arguments that a shell completes: the names of what is declared, read from folders and not from the files in them.

A shell asks while somebody types, so nothing is loaded that a list of names does not need, and a broken
declaration can be named like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer


def pipeline_names(incomplete: str) -> list[str]:
    """The declared pipelines whose name begins so."""
    return sorted(name for name in _pipelines() if name.startswith(incomplete))


def stream_names(incomplete: str) -> list[str]:
    """The declared pipelines and relays whose name begins so."""
    relays = (path.stem for path in (_root() / "include" / "relays").glob("*.yaml"))
    return sorted(name for name in {*_pipelines(), *relays} if name.startswith(incomplete))


#: A pipeline as an argument of a command.
PipelineArgument = Annotated[str, typer.Argument(help="The pipeline.", autocompletion=pipeline_names)]
#: A pipeline whose stream it is about, or a relay.
StreamArgument = Annotated[
    str,
    typer.Argument(
        help="A pipeline, a relay, or the DAG of what runs without end, such as rules.",
        autocompletion=stream_names,
    ),
]
#: A pipeline that may be left out.
OptionalPipelineArgument = Annotated[str, typer.Argument(help="Only this pipeline.", autocompletion=pipeline_names)]


def _pipelines() -> Iterator[str]:
    return (path.parent.name for path in (_root() / "include" / "pipelines").glob("*/pipeline.yaml"))


def _root() -> Path:
    from deltaworks.specs.project_folder import project_root

    return project_root()
