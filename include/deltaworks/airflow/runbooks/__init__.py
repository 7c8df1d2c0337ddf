"""Renders the runbook of each DAG from a Jinja template in this folder: purpose, what to do after a failure, how to
stop and start it. A template has the name of its kind of DAG.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from deltaworks.airflow.names import server_path

_FOLDER = Path(__file__).parent


def runbook(template: str, values: Mapping[str, Any]) -> str:
    """Returns the Markdown text of a template.

    Args:
        values: the subject's `name` and `owner`, and what else the template shows, mostly the subject's `spec`.
    """
    return _templates().get_template(f"{template}.md").render(values, console=server_path("/deltaworks"))


@functools.cache
def _templates() -> Environment:
    pages = {path.name: path.read_text(encoding="utf-8") for path in _FOLDER.glob("*.md")}
    environment = Environment(
        loader=DictLoader(pages),
        undefined=StrictUndefined,
        # Markdown, which Airflow renders and sanitizes.
        autoescape=False,  # noqa: S701
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _code
    return environment


def _code(names: Iterable[str]) -> str:
    """Lists names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)
