"""Stream groups: pipelines with the same `stream_group` run in one driver, each as a query of its own.

A group exists as soon as a pipeline names it. If the environment declares groups, only those may be named, so that a
typo creates no new group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from deltaworks.errors import ConfigError
from deltaworks.specs.base import suggest_name
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.environment import StreamGroupSpec
from deltaworks.specs.pipeline import PipelineSpec

#: Finds the group in the text of an invalid spec.
_GROUP_KEY = re.compile(r"^stream_group[ \t]*:[ \t]*[\"']?([a-z][a-z0-9_]*)", re.MULTILINE)
#: The kind of a group's DAG.
GROUP_KIND: Final = "stream_group"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGroup:
    """A stream group: its settings, its members by name, and the errors of members with invalid specs."""

    name: str
    settings: StreamGroupSpec
    members: Mapping[str, PipelineSpec]
    invalid_members: Mapping[str, ConfigError] = field(default_factory=dict)

    @property
    def dag_id(self) -> str:
        """The id of the group's DAG."""
        return group_dag_id(self.name)

    @property
    def max_run_seconds(self) -> int:
        """Seconds after which the group's driver ends itself."""
        if self.settings.max_run_seconds is not None:
            return self.settings.max_run_seconds
        return min((spec.stream.max_run_seconds for spec in self.members.values()), default=14_400)


def group_dag_id(group: str) -> str:
    """Returns the DAG id of a group."""
    return dag_id(group, GROUP_KIND)


def stream_dag_id(pipeline: str, group: str | None = None) -> str:
    """Returns the id of the DAG that runs a pipeline's stream: the group's DAG if the pipeline has a group."""
    return dag_id(pipeline, "stream") if group is None else group_dag_id(group)


def stream_groups(catalog: Catalog) -> dict[str, StreamGroup]:
    """Returns all groups of the catalog, sorted. Includes groups that only invalid pipelines name."""
    members: dict[str, dict[str, PipelineSpec]] = {}
    invalid: dict[str, dict[str, ConfigError]] = {}
    for pipeline, spec in catalog.pipelines.items():
        if spec.stream_group is not None:
            members.setdefault(spec.stream_group, {})[pipeline] = spec
    for pipeline, error in catalog.invalid_pipelines().items():
        if (group := group_of(catalog, pipeline)) is not None:
            invalid.setdefault(group, {})[pipeline] = error
    declared = catalog.environment.stream_groups
    return {
        name: StreamGroup(
            name=name,
            settings=declared.get(name) or StreamGroupSpec(),
            members=members.get(name, {}),
            invalid_members=invalid.get(name, {}),
        )
        for name in sorted({*members, *invalid})
    }


def stream_group(catalog: Catalog, name: str) -> StreamGroup:
    """Returns a group by name.

    Raises:
        ConfigError: GROUP_UNKNOWN with the closest name.
    """
    groups = stream_groups(catalog)
    if name not in groups:
        raise ConfigError(
            "GROUP_UNKNOWN",
            f"No pipeline is in the group {name!r}; {suggest_name(name, groups)}",
            hint="Write `stream_group` in the pipeline.yaml of its members.",
        )
    return groups[name]


def group_of(catalog: Catalog, pipeline: str) -> str | None:
    """Returns the group of a pipeline, if any. For an invalid spec, takes it from the file's text or an override."""
    spec = catalog.pipelines.get(pipeline)
    if spec is not None:
        return spec.stream_group
    overrides = catalog.environment.overrides.get("pipelines", {}).get(pipeline, {})
    if "stream_group" in overrides:
        return str(overrides["stream_group"]) if overrides["stream_group"] else None
    match = _GROUP_KEY.search(catalog.declaration_text("pipeline", pipeline))
    return match.group(1) if match else None
