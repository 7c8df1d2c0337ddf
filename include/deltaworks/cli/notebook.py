"""`deltaworks notebook`: writes a notebook that is connected to the lake, or prints the cell that connects one."""

from __future__ import annotations

from pathlib import Path

import typer

from deltaworks.cli.output import print_document, print_line


def notebook(
    file: Path | None = typer.Argument(None, help="New notebook; without it, the connection cell is printed."),
    pipelines: str = typer.Option("", help="Only tables of these pipelines, separated by commas; by default all."),
) -> None:
    """Write a Jupyter notebook with the cell that connects it to the lake; without a file, print that cell."""
    from deltaworks.operations.options import split_names
    from deltaworks.scaffolding.notebook import connection_cell, write_notebook
    from deltaworks.specs.project import load_catalog

    names = split_names(pipelines)
    if names:
        load_catalog(skip_invalid=True, only=names)
    if file is None:
        print_document(connection_cell(names))
        return
    path = file.with_suffix(".ipynb") if not file.suffix else file
    try:
        write_notebook(path, names)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}; no notebook was written") from None
    print_line(f"Written: {path}")
