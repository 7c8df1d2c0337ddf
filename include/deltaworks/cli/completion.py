"""Arguments with shell completion: names of declared pipelines and relays, read from file names only.

Completion runs while someone types, so it loads no specs. Names of invalid specs are completed, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer


def pipeline_names(incomplete: str) -> list[str]:
    """Returns the declared pipelines with this prefix."""
    return sorted(name for name in _pipelines() if name.startswith(incomplete))


def stream_names(incomplete: str) -> list[str]:
    """Returns the declared pipelines and relays with this prefix."""
    relays = (path.stem for path in (_root() / "include" / "relays").glob("*.yaml"))
    return sorted(name for name in {*_pipelines(), *relays} if name.startswith(incomplete))


#: An argument that names a pipeline.
PipelineArgument = Annotated[str, typer.Argument(help="The pipeline.", autocompletion=pipeline_names)]
#: An argument that names a stream's pipeline, a relay, or another long-running process.
StreamArgument = Annotated[
    str,
    typer.Argument(
        help="A pipeline, a relay, or the DAG of another long-running process, such as rules.",
        autocompletion=stream_names,
    ),
]
#: An optional argument that names a pipeline.
OptionalPipelineArgument = Annotated[str, typer.Argument(help="Only this pipeline.", autocompletion=pipeline_names)]


def _pipelines() -> Iterator[str]:
    return (path.parent.name for path in (_root() / "include" / "pipelines").glob("*/pipeline.yaml"))


def _root() -> Path:
    from deltaworks.specs.project_folder import project_root

    return project_root()
