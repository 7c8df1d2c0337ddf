"""Reports of collectors and vaults."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from deltaworks.control import paths
from deltaworks.control.health.processes import process_reports
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.erasure import VaultHeartbeat
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from tests.unit.control.health.test_collectors import NOW, ago, heartbeat_of
from tests.unit.kubernetes.conftest import write_collector
from tests.unit.specs.conftest import ENVIRONMENT, PIPELINE, write_project

VAULT = 'privacy: {keys: {kind: kms, key_id: alias/privacy}, vault: {root: "file:///vault"}}\n'
PRIVATE = "privacy: {namespace: customers, fields: [{path: email, action: vault, as: email}]}\n"


def declare_project(root: Path, *, vault: bool = True) -> Catalog:
    """A project with a collector and a pipeline with personal data, with or without a vault."""
    private = {"environment": ENVIRONMENT + VAULT, "pipeline": PIPELINE + PRIVATE} if vault else {}
    write_collector(write_project(root, **private))
    return load_catalog(root=root)


def test_collectors_and_vaults_are_evaluated_at_the_same_time(tmp_path: Path) -> None:
    catalog, objects = declare_project(tmp_path / "project"), LocalObjects(tmp_path / "lake")
    objects.put(paths.collector_heartbeat("edge", "c" * 32), heartbeat_of(written_at=ago(hours=1)).encode())
    left = VaultHeartbeat(namespace="customers", written_at=ago(hours=2), caught_up_at=ago(hours=2))
    objects.put(paths.vault_heartbeat("customers"), left.encode())
    first = process_reports(catalog, objects, now=NOW)
    previous = {report.subject.key: report.verdict for report in first}
    later = process_reports(catalog, objects, previous=previous, now=NOW + timedelta(minutes=5))

    causes = {"edge__collector": "COLLECTOR_STALE", "customers__vault": "VAULT_BEHIND"}
    for reports in (first, later):
        assert {report.subject.key: report.verdict.cause for report in reports} == causes
        assert {report.verdict.since for report in reports} == {NOW}


def test_without_a_vault_and_a_collector_run_there_are_no_reports(tmp_path: Path) -> None:
    assert process_reports(declare_project(tmp_path / "project", vault=False), LocalObjects(tmp_path / "lake")) == []
