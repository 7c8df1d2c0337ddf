"""An invalid pipeline does not block the others, and is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.project import load_catalog
from tests.unit.specs.conftest import ENVIRONMENT, PIPELINE, RELAY

MakeProject = Callable[..., Path]


def with_a_second(root: Path, text: str) -> Path:
    folder = root / "include" / "pipelines" / "store"
    folder.mkdir(parents=True)
    (folder / "pipeline.yaml").write_text(text)
    return root


@pytest.fixture
def root(make_project: MakeProject) -> Path:
    """A good pipeline `shop` beside a wrong one, `store`."""
    return with_a_second(make_project(), PIPELINE.replace("pipeline: shop", "pipeline: store\ncolour: blue"))


def test_valid_pipelines_are_read(root: Path) -> None:
    catalog = load_catalog("local", root=root, skip_invalid=True)

    assert list(catalog.pipelines) == ["shop"]
    assert list(catalog.broken) == [("pipeline", "store")]


def test_looking_up_an_invalid_pipeline_raises_its_error(root: Path) -> None:
    catalog = load_catalog("local", root=root, skip_invalid=True)

    with pytest.raises(ConfigError, match="unknown key 'colour'") as caught:
        catalog.pipeline("store")

    assert caught.value.condition == "SPEC_INVALID"
    with pytest.raises(ConfigError, match="PIPELINE_UNKNOWN"):
        catalog.pipeline("other")


def test_without_skip_invalid_the_first_error_is_raised(root: Path) -> None:
    with pytest.raises(ConfigError, match="SPEC_INVALID"):
        load_catalog("local", root=root)


def test_an_invalid_relay_invalidates_its_pipelines_with_its_error(make_project: MakeProject) -> None:
    catalog = load_catalog("local", root=make_project(relay=RELAY + "colour: blue\n"), skip_invalid=True)

    assert set(catalog.broken) == {("relay", "landing"), ("pipeline", "shop")}
    with pytest.raises(ConfigError, match="colour"):
        catalog.pipeline("shop")


def test_an_override_of_an_invalid_pipeline_is_not_an_error(root: Path) -> None:
    (root / "include" / "environments" / "local.yaml").write_text(
        ENVIRONMENT + "overrides: {pipelines: {store: {stream: {trigger_seconds: 5}}}}\n"
    )

    assert list(load_catalog("local", root=root, skip_invalid=True).broken) == [("pipeline", "store")]


def test_an_override_without_a_target_is_reported(make_project: MakeProject) -> None:
    environment = ENVIRONMENT + "overrides: {pipelines: {shopp: {owner: x}}}\n"

    catalog = load_catalog("local", root=make_project(environment=environment), skip_invalid=True)

    assert [error.condition for error in catalog.broken.values()] == ["OVERRIDE_UNKNOWN"]
    assert list(catalog.pipelines) == ["shop"]


def test_an_invalid_environment_is_always_raised(make_project: MakeProject) -> None:
    with pytest.raises(ConfigError, match="SPEC_INVALID"):
        load_catalog("local", root=make_project(environment=ENVIRONMENT + "colour: blue\n"), skip_invalid=True)
