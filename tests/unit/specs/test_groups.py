"""Stream groups: their members, and errors for misspelt names."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.groups import group_of, stream_dag_id, stream_groups
from deltaworks.specs.project import load_catalog
from deltaworks.testing import write_project
from tests.unit.specs.conftest import ENVIRONMENT

PIPELINE = """\
pipeline: %s
description: events
owner: tests
source: {kind: delta, uri: "file:///elsewhere"}
event: {name: {constant: e}, time: {path: at, unit: epoch_seconds}}
tables: [{name: events, catch_all: true}]
stream: {max_run_seconds: %d}
"""


def project(root: Path, environment: str = "", **groups: str) -> Path:
    """A project whose pipelines have these lines at their end."""
    numbered = enumerate(groups.items(), start=1)
    pipelines = [PIPELINE % (name, 1000 * number) + f"{line}\n" for number, (name, line) in numbered]
    return write_project(root, *pipelines, environment=ENVIRONMENT + environment, relays=[])


def read(root: Path) -> Catalog:
    return load_catalog("local", root=root, skip_invalid=True)


def test_pipelines_that_name_the_same_group_are_its_members(tmp_path: Path) -> None:
    root = project(tmp_path, a="stream_group: small", b="", c="stream_group: small", d="stream_group: other")

    groups = stream_groups(read(root))

    assert {name: list(group.members) for name, group in groups.items()} == {"other": ["d"], "small": ["a", "c"]}
    assert groups["small"].max_run_seconds == 1000
    assert stream_dag_id("b") == "b__stream"
    assert stream_dag_id("a", "small") == groups["small"].dag_id == "small__stream_group"


def test_settings_of_a_group_come_from_the_environment(tmp_path: Path) -> None:
    settings = "stream_groups: {small: {driver_memory: 2g, max_run_seconds: 60, non_outage_failures: 2}}\n"
    root = project(tmp_path, settings, a="stream_group: small")

    group = stream_groups(read(root))["small"]

    assert (group.settings.driver_memory, group.max_run_seconds, group.settings.non_outage_failures) == ("2g", 60, 2)


def test_an_undeclared_group_is_an_error_with_the_closest_name(tmp_path: Path) -> None:
    root = project(tmp_path, "stream_groups: {small: {}}\n", a="stream_group: smal", b="stream_group: small")

    with pytest.raises(ConfigError, match=r"pipeline\.yaml:8.*no group 'smal'.*did you mean 'small'"):
        load_catalog("local", root=root)
    groups = stream_groups(read(root))

    assert list(groups["small"].members) == ["b"]
    assert list(groups["smal"].invalid_members) == ["a"]


@pytest.mark.parametrize("line", ["stream_group: small", 'stream_group : "small"', "stream_group: 'small' # why"])
def test_an_invalid_pipeline_remains_a_member_of_its_group(tmp_path: Path, line: str) -> None:
    root = project(tmp_path, a=f"{line}\nunknown: 1", b="stream_group: small")

    catalog = read(root)
    group = stream_groups(catalog)["small"]

    assert list(group.members) == ["b"]
    assert list(group.invalid_members) == ["a"]
    assert group_of(catalog, "a") == "small"


def test_an_override_changes_the_group_of_an_invalid_pipeline_too(tmp_path: Path) -> None:
    moved = "overrides: {pipelines: {a: {stream_group: small}, b: {stream_group: small}}}\n"
    root = project(tmp_path, moved, a="unknown: 1", b="")

    group = stream_groups(read(root))["small"]

    assert (list(group.members), list(group.invalid_members)) == (["b"], ["a"])
