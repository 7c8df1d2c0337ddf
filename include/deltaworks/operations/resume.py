"""Catching up a table that a stream has suspended."""

from __future__ import annotations

import getpass
import time
from typing import Annotated

from pydantic import Field

from deltaworks.errors import ConfigError, ContractError
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.options import Options, Positional, TableNames


class ResumeOptions(Options):
    """Options of a resume."""

    table: Annotated[str, Positional(), TableNames(("bronze", "quarantine"))] = Field(
        description="The suspended table."
    )
    wait_seconds: float = Field(120.0, ge=0, description="How long to wait for the stream to answer; 0 only asks.")


def resume(context: OperationContext, options: ResumeOptions) -> Report:
    """Ask the stream to catch a table up, in the order of its batches. Asking twice is asking once.

    Raises:
        ConfigError: TABLE_NOT_SUSPENDED.
        ContractError: what the table failed with again.
    """
    from deltaworks.control import paths
    from deltaworks.control.home import PipelineHome
    from deltaworks.control.locks.lease import LeaseWatch

    pipeline, table = context.subject, options.table
    home = PipelineHome.open(context.catalog.environment.lake, pipeline)
    before = home.held.read().get(table)
    if before is None or before.reason != "suspended":
        raise ConfigError(
            "TABLE_NOT_SUSPENDED",
            f"{pipeline}.{table} is not suspended.",
            hint="`deltaworks tables` lists what is held, and why.",
        )
    home.held.request_resume(table, by=getpass.getuser())
    lease = LeaseWatch(home.objects, paths.stream_lease(pipeline), silent_seconds=60)
    if not lease.runs():
        return Report(parts=[f"Asked. The stream of {pipeline} does not run; its next start catches {table} up."])
    deadline = time.monotonic() + options.wait_seconds
    while time.monotonic() < deadline:
        held = home.held.read().get(table)
        if held is None:
            return Report(parts=[f"{pipeline}.{table} has caught up."])
        if home.objects.get(paths.resume_request(pipeline, table)) is None:
            raise ContractError(held.condition or "TABLE_SUSPENDED", held.message, hint=held.hint)
        time.sleep(1)
    return Report(
        parts=[f"Asked. The stream has not finished yet; `deltaworks tables {pipeline}` shows how far it is."]
    )
