"""A table that VACUUM skips has one alert, until it is vacuumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import TransientError
from deltaworks.maintenance import vacuum
from deltaworks.maintenance.vacuum import VacuumResult, alert_not_vacuumed, resolve_not_vacuumed, vacuum_tables
from tests.unit.maintenance.table_data import ORDERS, SHOP, project


def open_alerts(objects: LocalObjects) -> dict[str, str]:
    return {alert.subject: alert.summary for alert in alerts(objects) if alert.state.is_open}


def test_the_alert_is_open_until_the_table_is_vacuumed(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)

    for _ in range(2):
        alert_not_vacuumed(PipelineHome(objects, "shop"), "orders", reason="a reader is gone")
    resolve_not_vacuumed(PipelineHome(objects, "shop"), "clicks")
    assert open_alerts(objects) == {"shop.orders": "VACUUM skips shop.orders: a reader is gone"}
    assert len(objects.list(paths.alerts("spool/"))) == 1

    resolve_not_vacuumed(PipelineHome(objects, "shop"), "orders")
    assert open_alerts(objects) == {}
    assert len(objects.list(paths.alerts("spool/"))) == 2


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_run_raises_alerts_for_skipped_tables_and_resolves_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    catalog, objects = project(tmp_path, shop=SHOP + ORDERS), LocalObjects(tmp_path / "lake")
    found = {"orders": VacuumResult(table="orders", dry_run=dry_run, skipped=True, reason="files wait")}
    found["quarantine"] = VacuumResult(table="quarantine", dry_run=dry_run, reason="it does not exist yet")
    monkeypatch.setattr(vacuum._VacuumRun, "vacuum_table", lambda _, name: found[name])
    alert_not_vacuumed(PipelineHome(objects, "shop"), "quarantine", reason="as last night")

    vacuum_tables(None, catalog, "shop", dry_run=dry_run)
    assert set(open_alerts(objects)) == ({"shop.quarantine"} if dry_run else {"shop.orders", "shop.quarantine"})

    for name in found:
        found[name] = VacuumResult(table=name, dry_run=dry_run, mode="lite")
    vacuum_tables(None, catalog, "shop", dry_run=dry_run)
    assert set(open_alerts(objects)) == ({"shop.quarantine"} if dry_run else set())


def test_alert_failures_do_not_stop_vacuum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def away(*arguments: object, **__: object) -> None:
        asked.append(arguments)
        raise TransientError("STORAGE_UNREACHABLE", "it does not answer")

    monkeypatch.setattr(vacuum, "raise_alert", away)
    objects = LocalObjects(tmp_path)

    alert_not_vacuumed(PipelineHome(objects, "shop"), "orders", reason="a reader is gone")

    assert len(asked) == 1
    assert open_alerts(objects) == {}
    assert "table=shop.orders its alert could not be raised or resolved: " in caplog.text
    monkeypatch.undo()
    alert_not_vacuumed(PipelineHome(objects, "shop"), "orders", reason="a reader is gone")
    assert set(open_alerts(objects)) == {"shop.orders"}, "told as soon as it can be"
