"""Finds the actions that a person may see, and the equivalent commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltaworks.console.page_context import PageContext, PageMissingError
from deltaworks.operations.availability import unavailable_reason
from deltaworks.operations.base import Operation
from deltaworks.operations.dag_forms import DRY_RUN
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.dag_ids import dag_id


@dataclass(frozen=True, slots=True)
class Action:
    """An operation and its subject, both of which exist and are visible to the person."""

    operation: Operation
    subject: str

    @property
    def dag_id(self) -> str:
        """The DAG whose run executes the action."""
        return self.operation.dag_id(self.subject)

    @property
    def route(self) -> str:
        """The path of the action's form below the console."""
        return f"/actions/{self.operation.name}/{self.subject}"

    def command(self, conf: Mapping[str, Any] | None = None) -> str:
        """Returns the equivalent command, without options that have no value."""
        words = ["deltaworks", *self.operation.command.split(), self.subject]
        for name, value in (conf or {}).items():
            flag = "--" + name.replace("_", "-")
            if name == self.operation.actions_from:
                words.insert(2 + len(self.operation.command.split()), str(value))
            elif isinstance(value, bool):
                words += [flag if value else f"--no-{flag[2:]}"] if value or name == DRY_RUN else []
            elif isinstance(value, list | tuple):
                words += [f"{flag}={one}" for one in value]
            elif value is not None:
                words.append(f"{flag}={value}")
        return shlex.join(words)


def find_action(context: PageContext, name: str, subject: str) -> Action:
    """Returns the action of an address.

    Raises:
        PageMissingError: the operation or subject does not exist, or the person may not see it.
    """
    operation = OPERATIONS.get(name)
    if operation is None or not _is_available(context, operation, subject):
        raise PageMissingError(f"There is no action {name!r} for {subject!r} that you may see.")
    return Action(operation, subject)


def _is_available(context: PageContext, operation: Operation, subject: str) -> bool:
    if operation.scope == "namespace":
        return False  # access to a pipeline does not imply access to a namespace
    if operation.scope == "relay":
        return subject in context.catalog.relays and context.person.may_read(dag_id(subject, "relay"))
    spec = context.catalog.pipelines.get(subject)
    return spec is not None and context.may_read(subject) and unavailable_reason(operation, spec) is None
