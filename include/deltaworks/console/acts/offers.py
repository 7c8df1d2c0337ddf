"""Which acts there are, for whom, and the command that does the same without a browser."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltaworks.console.acts.fields import DRY_RUN
from deltaworks.console.look import Look, PageMissingError
from deltaworks.operations.availability import unavailable_reason
from deltaworks.operations.base import Operation
from deltaworks.operations.registry import OPERATIONS


@dataclass(frozen=True, slots=True)
class Act:
    """An operation on a subject that is there, for a person who may see it."""

    declared: Operation
    subject: str

    @property
    def dag_id(self) -> str:
        """The DAG whose run it is."""
        return self.declared.dag_id(self.subject)

    @property
    def route(self) -> str:
        """The address of its form, below the console."""
        return f"/acts/{self.declared.name}/{self.subject}"

    def command(self, conf: Mapping[str, Any] | None = None) -> str:
        """The command that does it. Options without a value are left out."""
        words = ["deltaworks", *self.declared.command.split(), self.subject]
        for name, value in (conf or {}).items():
            flag = "--" + name.replace("_", "-")
            if self.declared.family == "control" and name == "verb":
                words.insert(2 + len(self.declared.command.split()), str(value))
            elif isinstance(value, bool):
                words += [flag if value else f"--no-{flag[2:]}"] if value or name == DRY_RUN else []
            elif isinstance(value, list | tuple):
                words += [f"{flag}={one}" for one in value]
            elif value is not None:
                words.append(f"{flag}={value}")
        return shlex.join(words)


def act_of(look: Look, name: str, subject: str) -> Act:
    """The act of an address.

    Raises:
        PageMissingError: there is no such operation or subject, or none that the person may see.
    """
    declared = OPERATIONS.get(name)
    if declared is None or not _is_there(look, declared, subject):
        raise PageMissingError(f"There is no {name!r} of {subject!r} that you may see.")
    return Act(declared, subject)


def _is_there(look: Look, declared: Operation, subject: str) -> bool:
    if declared.scope == "namespace":
        return False  # a name of a pipeline says nothing of who may see a namespace
    if declared.scope == "relay":
        return subject in look.catalog.relays and look.person.may_read(f"relay__{subject}")
    spec = look.catalog.pipelines.get(subject)
    return spec is not None and look.may_read(subject) and unavailable_reason(declared, spec) is None
