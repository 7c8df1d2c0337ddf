"""The rotating comparison of data files with the logs: what is told, when, and what never is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.alerts.raising import read_alert
from deltaworks.console.actions.suggested_actions import suggest_action
from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.operations.recover import look_at_data_files
from deltaworks.recovery.repair import data_file_check
from deltaworks.recovery.repair.data_file_check import (
    Budget,
    FileCheck,
    FileCheckState,
    TableProgress,
    check_files,
    check_order,
    check_table,
    live_files,
)
from deltaworks.recovery.repair.log_gap import check_pipeline, file_repair
from deltaworks.recovery.repair.lost_files import repair_files
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows, catalog_of, declare_table, local_lake, pipeline_spec
from tests.unit.recovery.restore.source_harness import SourceHarness

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ORDERS = paths.table("shop", "orders")


@pytest.fixture(scope="module")
def landed_stage(tmp_path_factory: pytest.TempPathFactory) -> SourceHarness:
    harness = SourceHarness.at(tmp_path_factory.mktemp("landed"))
    assert isinstance(harness, SourceHarness)
    harness.land_all(0, 1, 2)
    return harness


@pytest.fixture
def stage(landed_stage: SourceHarness, tmp_path: Path) -> SourceHarness:
    return landed_stage.copied_to(tmp_path)


def data_files(lake: Lake, key: str) -> list[Path]:
    found = live_files(lake, key)
    return [Path(lake.storage.prefix) / key / path for path in sorted(found[0] if found else {})]


def told(objects: LocalObjects, condition: str, subject: str = "shop.orders") -> str:
    alert = read_alert(objects, cause=condition, subject=subject)
    return alert.summary if alert is not None and alert.state.is_open else ""


def run(stage: SourceHarness, minute: int = 0) -> FileCheck:
    return check_files(stage.catalog(), stage.objects, now=NOW + minute * MINUTE)


def test_a_deleted_file_is_told_by_the_next_run_and_the_named_command_clears_it(stage: SourceHarness) -> None:
    assert run(stage).damaged == ()
    lost = data_files(stage.lake, ORDERS)[0]
    lost.unlink()

    result = run(stage, 1)

    text = told(stage.objects, "DATA_FILE_MISSING")
    assert f"shop.orders: data file {lost.relative_to(Path(stage.lake.storage.prefix) / ORDERS)} is missing." in text
    assert "`deltaworks recover files shop orders`" in text
    assert result.condition == "DATA_FILE_MISSING"
    action = suggest_action("DATA_FILE_MISSING", "shop.orders", text)
    assert action is not None
    assert action.path == "/actions/recover_files/shop?table=orders"
    repair_files(stage.catalog(), "shop", "orders", dry_run=False, max_rows=10)
    assert run(stage, 2).damaged == ()
    assert not told(stage.objects, "DATA_FILE_MISSING")


def test_the_look_has_work_while_a_file_is_lost(stage: SourceHarness) -> None:
    before = look_at_data_files(stage.catalog())
    lost = data_files(stage.lake, ORDERS)[0]
    lost.unlink()
    damaged = look_at_data_files(stage.catalog())

    assert before.work == 0
    assert [result.damaged for result in before.results if isinstance(result, FileCheck)] == [()]
    assert damaged.work == 1
    assert lost.name in damaged.reason


def test_the_look_has_work_if_no_table_can_be_compared(stage: SourceHarness) -> None:
    for log in Path(stage.lake.storage.prefix).glob("tables/*/*/_delta_log/*.json"):
        log.write_bytes(b"{torn")

    found = look_at_data_files(stage.catalog())

    assert found.work == 1
    assert "no table could be compared" in found.reason


def test_a_file_of_another_size_is_told_as_unreadable_until_it_is_back(stage: SourceHarness) -> None:
    cut = data_files(stage.lake, ORDERS)[0]
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-1])

    assert run(stage).condition == "DATA_FILE_UNREADABLE"
    assert f"{cut.name} has {len(whole) - 1:,} bytes, which is not the size in the log" in told(
        stage.objects, "DATA_FILE_UNREADABLE"
    )
    cut.unlink()
    run(stage, 1)
    assert told(stage.objects, "DATA_FILE_MISSING")
    assert not told(stage.objects, "DATA_FILE_UNREADABLE")
    cut.write_bytes(whole)
    run(stage, 2)
    assert not told(stage.objects, "DATA_FILE_MISSING")


def test_an_unreadable_log_is_unknown_and_keeps_the_alert(stage: SourceHarness) -> None:
    lost = data_files(stage.lake, ORDERS)[0]
    content = lost.read_bytes()
    lost.unlink()
    run(stage)
    lost.write_bytes(content)
    log = sorted((Path(stage.lake.storage.prefix) / ORDERS / "_delta_log").glob("*.json"))[-1]
    commit = log.read_bytes()
    log.write_bytes(b"{torn")

    result = run(stage, 1)

    (unknown,) = result.unknown
    assert unknown.startswith("shop.orders: ")
    assert result.covered_at == NOW
    assert told(stage.objects, "DATA_FILE_MISSING")
    log.write_bytes(commit)
    assert run(stage, 2).unknown == ()
    assert not told(stage.objects, "DATA_FILE_MISSING")


def test_without_its_own_state_it_resolves_nothing_before_all_files_are_compared(stage: SourceHarness) -> None:
    data_files(stage.lake, ORDERS)[0].unlink()
    run(stage)
    stage.objects.put(paths.data_file_checks(), b"{torn")

    check_files(stage.catalog(), stage.objects, now=NOW + MINUTE, budget=Budget(tables=9, requests=0))
    assert told(stage.objects, "DATA_FILE_MISSING")


def test_an_alert_of_a_table_that_is_no_longer_declared_ends(stage: SourceHarness, tmp_path: Path) -> None:
    data_files(stage.lake, ORDERS)[0].unlink()
    run(stage)
    other = catalog_of(tmp_path, pipeline_spec(declare_table("visits")))

    check_files(other, stage.objects, now=NOW + MINUTE)

    assert not told(stage.objects, "DATA_FILE_MISSING")


def test_each_kind_of_table_has_the_repair_that_the_check_of_tables_names() -> None:
    shipped = load_catalog("local").pipelines.values()

    repairs = {
        kind: file_repair(spec, name).replace(spec.pipeline, "games")
        for spec in shipped
        for name, kind in spec.table_kinds.items()
    }

    assert repairs["bronze"].startswith("Run `deltaworks recover files games")
    assert "`deltaworks recover files games quarantine`" in repairs["quarantine"]
    assert repairs["gold"] == "Run games__gold with `full`."
    assert "restart the stream of games" in repairs["keyed"]
    assert repairs["reference"] == "Move its folder away and run games__gold, which loads it again."


def test_a_lost_file_of_a_reference_table_is_shown_by_the_check_of_tables(tmp_path: Path) -> None:
    spec = next(spec for spec in load_catalog("local").pipelines.values() if spec.references)
    catalog = catalog_of(tmp_path, spec)
    lake, key = Lake(catalog.environment.lake), paths.table(spec.pipeline, spec.references[0].name)
    append_rows(lake, key, [{"x": 1}])
    data_files(lake, key)[0].unlink()

    (damage,) = check_pipeline(catalog, spec.pipeline, table=spec.references[0].name)

    assert damage.repair == f"move its folder away and run {spec.pipeline}__gold, which loads it again"


def fill(lake: Lake, key: str, days: Iterator[int] | range, *, number: int = 1) -> None:
    rows = [{"day": f"2026-01-{day:02}", "x": day} for day in days]
    append_rows(lake, key, rows, partition_by=["day"], number=number)


def test_a_run_stays_within_its_requests_and_the_rotation_reaches_every_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_file_check, "_SMALL_TABLE_FILES", 0)
    monkeypatch.setattr(data_file_check, "_MIN_REQUESTS_PER_TABLE", 2)
    catalog = catalog_of(tmp_path, pipeline_spec(*(declare_table(f"t{number}") for number in range(4))))
    lake, objects = Lake(catalog.environment.lake), LocalObjects(Path(catalog.environment.lake.prefix))
    for number in range(4):
        fill(lake, paths.table("shop", f"t{number}"), range(1, 21))
    data_files(lake, paths.table("shop", "t3"))[0].unlink()

    # The files are as old as the test, so all partitions count as written lately, until the clock has moved on.
    runs = []
    for minute in range(100, 200):
        budget = Budget(tables=4, requests=50)
        runs.append(check_files(catalog, objects, now=datetime.now(UTC) + minute * MINUTE, budget=budget))
        if runs[-1].damaged and runs[-1].covered_at:
            break

    assert all(one.requests <= 50 for one in runs)
    # How the threads share the requests depends on their order; five tables in twenty runs are at least four partitions
    # a run, of the 25 that remain after opening the tables.
    assert len(runs) <= 20
    assert told(objects, "DATA_FILE_MISSING", "shop.t3")


def test_what_was_written_lately_is_compared_in_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file_check, "_SMALL_TABLE_FILES", 0)
    monkeypatch.setattr(data_file_check, "_MIN_REQUESTS_PER_TABLE", 4)
    lake, key = local_lake(tmp_path), "tables/shop/t"
    fill(lake, key, range(1, 21))
    now = datetime.now(UTC) + timedelta(hours=1)
    progress = TableProgress(checked_at=now, cursor="day=2026-01-01", round_at=now)
    fill(lake, key, range(20, 21), number=2)
    for file in data_files(lake, key)[-2:]:
        file.unlink()
    found = check_table(
        lake, key, progress.replace(checked_at=now - timedelta(hours=1)), Budget(tables=1, requests=9), now=now
    )

    assert found is not None
    assert len(found.damaged) == 2


def test_no_alarm_while_files_are_compacted_and_deleted(tmp_path: Path) -> None:
    lake, key, ended = local_lake(tmp_path), "tables/shop/t", threading.Event()
    fill(lake, key, range(1, 4))

    def maintain() -> None:
        for number in range(2, 7):
            fill(local_lake(tmp_path), key, range(1, 4), number=number)
            table = DeltaTable(str(Path(lake.storage.prefix) / key))
            table.optimize.compact()
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        ended.set()

    writer = threading.Thread(target=maintain)
    writer.start()
    checks = 0
    try:
        while not ended.is_set() and writer.is_alive():
            found = check_table(lake, key, TableProgress(checked_at=NOW), Budget(tables=1), now=NOW)
            assert found is not None
            assert found.damaged == {}
            checks += 1
    finally:
        writer.join()
    assert checks > 0


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["write", "remove", "lose", "cut", "return", "compact"]), st.integers(1, 6)), max_size=8
)


@settings(max_examples=6, deadline=None)
@given(operations=OPERATIONS, requests=st.integers(7, 40), small=st.booleans())
def test_what_is_told_is_what_a_look_at_every_file_finds(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]], requests: int, small: bool
) -> None:
    lake, key = local_lake(tmp_path_factory.mktemp("lake")), "tables/shop/t"
    root, lost = Path(lake.storage.prefix) / key, dict[Path, bytes]()
    fill(lake, key, range(1, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_file_check, "_SMALL_TABLE_FILES", 500 if small else 0)
        patch.setattr(data_file_check, "_MIN_REQUESTS_PER_TABLE", 1)
        progress, now = TableProgress(checked_at=NOW), datetime.now(UTC)
        for number, (operation, day) in enumerate(operations, start=2):
            change(lake, key, operation, day=day, number=number, lost=lost)
            now += MINUTE
            found = check_table(lake, key, progress, Budget(tables=1, requests=requests), now=now)
            progress = found or progress
            assert progress.damaged.keys() <= expected_damage(lake, key, root)
        for _ in range(10):
            now += MINUTE
            progress = check_table(lake, key, progress, Budget(tables=1, requests=requests), now=now) or progress
        assert progress.damaged.keys() == expected_damage(lake, key, root)


def expected_damage(lake: Lake, key: str, root: Path) -> set[str]:
    """The files that the log names and that a look at each of them finds absent or of another size."""
    found = live_files(lake, key)
    assert found is not None
    return {
        path
        for path, file in found[0].items()
        if not (root / path).exists() or (root / path).stat().st_size != file.size
    }


def change(lake: Lake, key: str, operation: str, *, day: int, number: int, lost: dict[Path, bytes]) -> None:
    """Changes the table, or what is stored: `lose` and `cut` damage a file, and `return` puts it back."""
    table, present = (
        DeltaTable(str(Path(lake.storage.prefix) / key)),
        [path for path in data_files(lake, key) if path.exists()],
    )
    if operation == "write":
        fill(lake, key, range(day, day + 1), number=number)
    elif operation == "remove" and not lost:
        table.delete(f"day = '2026-01-{day:02}'")
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    elif operation == "compact" and not lost:
        table.optimize.compact()
    elif operation in ("lose", "cut") and present:
        file = present[day % len(present)]
        if file not in lost:
            lost[file] = file.read_bytes()
            file.unlink() if operation == "lose" else file.write_bytes(lost[file][:-2])
    elif operation == "return" and lost:
        file, content = lost.popitem()
        file.write_bytes(content)


@settings(max_examples=50, deadline=None)
@given(costs=st.lists(st.integers(1, 30), min_size=1, max_size=20), recent=st.sets(st.integers(0, 19)))
def test_every_table_has_its_turn_however_busy_the_others_are(costs: list[int], recent: set[int]) -> None:
    state, now, requests = FileCheckState(), NOW, 30
    for _ in range(10 * len(costs)):
        now += MINUTE
        spent = 0
        for key in check_order(map(str, range(len(costs))), state, now=now):
            spent += costs[int(key)]
            if spent > requests:
                break
            changed_at_ms = int(now.timestamp() * 1000) if int(key) in recent else 0
            progress = TableProgress(checked_at=now, changed_at_ms=changed_at_ms)
            state = FileCheckState(tables={**state.tables, key: progress})

    # A table waits for the others, of which each may go four times before it.
    bound = 4 * (1 + sum(costs) // (requests // 2 + 1)) + 4
    assert len(state.tables) == len(costs)
    assert all((now - progress.checked_at) <= bound * MINUTE for progress in state.tables.values())


def test_the_whole_shipped_project_is_checked_in_one_run(tmp_path: Path) -> None:
    shipped: Catalog = load_catalog("local")
    catalog = catalog_of(tmp_path, shipped.pipeline("games"))
    lake, objects = Lake(catalog.environment.lake), LocalObjects(Path(catalog.environment.lake.prefix))
    for name in catalog.pipeline("games").table_kinds:
        fill(lake, paths.table("games", name), range(1, 15))

    result = check_files(catalog, objects, now=NOW)

    assert (result.compared, result.waiting, result.covered_at) == (result.tables, 0, NOW)
    assert result.requests < data_file_check.MAX_REQUESTS / 2
