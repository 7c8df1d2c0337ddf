"""A new stack gets generated network databases if its pipelines need some and none exist."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.events.source_fields import pin_databases
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import load_catalog
from deltaworks.testing import write_project
from generator.networks import ASN_DATABASE, CITY_DATABASE
from sandbox.stack.home import StackHome
from sandbox.stack.sample_databases import put_sample_databases


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackHome:
    include = tmp_path / "project" / "include"
    for name in ("cdn_logs", "edits"):
        shutil.copytree(PROJECT_ROOT / "include" / "pipelines" / name, include / "pipelines" / name)
    shutil.copytree(PROJECT_ROOT / "include" / "relays", include / "relays")
    write_project(tmp_path / "project", lake=tmp_path, relays=[])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = StackHome.at(tmp_path / "home", project=tmp_path / "project")
    home.create()
    return home


def test_what_pipelines_look_addresses_up_in_is_put_once(home: StackHome, tmp_path: Path) -> None:
    assert put_sample_databases(home) == (ASN_DATABASE, CITY_DATABASE)
    assert put_sample_databases(home) == ()

    catalog = load_catalog("local", root=home.project)
    databases = pin_databases(catalog.pipeline("cdn_logs"), catalog.environment.lake)
    assert databases is not None


def test_a_database_that_somebody_put_stays(home: StackHome, tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path / "lake")
    objects.put(paths.database(CITY_DATABASE), b"of MaxMind")

    assert put_sample_databases(home) == (ASN_DATABASE,)
    stored = objects.get(paths.database(CITY_DATABASE))
    assert stored is not None
    assert stored.data == b"of MaxMind"


def test_a_stack_whose_pipelines_look_nothing_up_gets_none(home: StackHome, tmp_path: Path) -> None:
    assert put_sample_databases(home, ["edits"]) == ()
    assert not (tmp_path / "lake").exists()
