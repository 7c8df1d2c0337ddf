"""Who may approve what an operation deletes, and whether people may approve what they asked for themselves."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from deltaworks.specs.base import Spec


def _as_person(declared: Any) -> Any:
    return {"id": declared} if isinstance(declared, str) else declared


class PersonSpec(Spec):
    """A person by the id that Airflow's auth manager has, with the name where that is another."""

    id: str = Field(min_length=1)
    name: str = ""

    def is_named(self, *names: str) -> bool:
        """Whether the person is one of these ids or names."""
        return bool({self.id, self.name} & {name for name in names if name})


Approvers = tuple[Annotated[PersonSpec, BeforeValidator(_as_person)], ...]


class ApprovalsSpec(Spec):
    """Who approves. A pipeline's own `approvers` stand instead of these."""

    approvers: Approvers = Field(default=(), description="without any, whoever may answer in Airflow")
    self_approval: bool = Field(default=False, description="people may approve their own requests")
