"""Runs commands of `deltaworks` in this process."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner, Result

from deltaworks.cli import app


def invoke(*words: str, columns: int | None = None, **options: Any) -> Result:
    """Runs a command, on a terminal of this width; returns its result, with the error if it raised one."""
    env = None if columns is None else {"COLUMNS": str(columns)}
    return CliRunner().invoke(app, list(words), env=env, **options)


def output_of(*words: str, exit_code: int = 0) -> str:
    """Runs a command and returns what it printed.

    Raises:
        Exception: the command raised it.
        AssertionError: the command ended with another code.
    """
    result = invoke(*words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == exit_code, result.output
    return result.output
