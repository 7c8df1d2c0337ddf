"""Executes the recovery page: after damage, the page's own commands restore every row exactly once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from deltaworks.cli import app
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import Lease
from deltaworks.engine import recovery as run_start
from deltaworks.engine.ledger import CommittedBatches, max_owner_epoch
from deltaworks.engine.recovery import current_checkpoint, open_batch_processor
from deltaworks.errors import DeltaworksError
from deltaworks.recovery.repair import lost_files
from deltaworks.recovery.restore import lost_commits
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.tables.log import state_at
from deltaworks.tables.protected_files import find_damaged_files
from deltaworks.testing import present
from tests.unit.recovery.restore.source_harness import ALL, SourceHarness

PAGE = (PROJECT_ROOT / "docs" / "how-to/recover.md").read_text()
ORDERS = paths.table("shop", "orders")
LANDED = (0, 1, 2, 3, 4)


def commands(heading: str) -> list[str]:
    """The commands of one section of the page."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None, heading
    blocks = re.findall(r"```console\n(.*?)```", section[1], re.DOTALL)
    found = [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    assert found, heading
    return found


@pytest.fixture(scope="module")
def landed_stage(tmp_path_factory: pytest.TempPathFactory) -> SourceHarness:
    made = SourceHarness.at(tmp_path_factory.mktemp("landed"))
    assert isinstance(made, SourceHarness)
    made.land_all(*LANDED)
    return made


@pytest.fixture
def stage(landed_stage: SourceHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SourceHarness:
    made = landed_stage.copied_to(tmp_path)
    for module in ("files", "operations", "tables"):
        monkeypatch.setattr(f"deltaworks.cli.{module}.catalog", made.catalog)
    return made


def start(stage: SourceHarness) -> None:
    """What a stream does when it starts, up to its query; what it is asked for is served."""
    lease = Lease(
        stage.objects,
        paths.pipeline_control("shop", "lease.json"),
        ttl_seconds=3,
        name="shop",
        known_epoch=lambda: max_owner_epoch(stage.lake, "shop"),
    )
    epoch = lease.acquire(wait_seconds=5)
    try:
        processor, ledger = open_batch_processor(
            None, stage.catalog(), stage.spec, stage.objects, lease=lease, epoch=epoch
        )
        while processor.complete_prepared() is not None:
            pass
        current_checkpoint(PipelineHome(stage.objects, "shop"), ledger)
        processor.serve_requests()
    finally:
        lease.release()
    stage.epoch = epoch


def run(stage: SourceHarness, heading: str, **values: str) -> str:
    """Execute a section with its placeholders filled; ROWS is what the dry run before names. All that was printed."""
    printed: list[str] = []
    for command in commands(heading):
        filled = command.replace("PIPELINE", "shop").replace("TABLE", "orders")
        for name, value in values.items():
            filled = filled.replace(name, value)
        if "ROWS" in filled:
            named = re.search(r"--max-rows (\d+)", printed[-1])
            filled = filled.replace("ROWS", named[1] if named else "1000")
        words = filled.split()[1:]
        if words[0] == "start":
            start(stage)
        elif words[0] != "stop":
            printed.append(execute(words))
    return "\n".join(printed)


def execute(words: list[str]) -> str:
    """One command; what it prints."""
    done = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    if isinstance(done.exception, DeltaworksError):
        # A table that the stream has not met yet is not suspended, and needs no resuming.
        assert (words[:2], done.exception.condition) == (["tables", "resume"], "TABLE_NOT_SUSPENDED"), done.exception
    else:
        assert done.exit_code == 0, f"{words}: {done.output} {done.exception!r}"
    return done.output


def log_file(stage: SourceHarness, version: int) -> Path:
    return stage.root / "lake" / ORDERS / "_delta_log" / f"{version:020d}.json"


def suspend(stage: SourceHarness) -> None:
    """The stream meets the damage: it suspends the table and continues."""
    stage.land_object(stage.processor(), 5)


def data_file(stage: SourceHarness) -> Path:
    name = next(iter(state_at(stage.lake, stage.objects, ORDERS).files))[0]
    return Path(stage.root / "lake" / ORDERS / name)


def delete_file(stage: SourceHarness) -> None:
    data_file(stage).unlink()


def compact_and_delete_file(stage: SourceHarness) -> None:
    table = present(stage.lake.open(ORDERS))
    table.optimize.compact()
    delete_file(stage)


def truncate_file(stage: SourceHarness) -> None:
    path = data_file(stage)
    path.write_bytes(path.read_bytes()[:-100])


def break_footer(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-200] + bytes(200))


def break_pages(path: Path) -> None:
    data, footer = path.read_bytes(), pq.read_metadata(path).serialized_size
    path.write_bytes(data[:4] + b"\xff" * (len(data) - footer - 12) + data[-footer - 8 :])


def delete_commit(stage: SourceHarness) -> None:
    log_file(stage, stage.version_of("orders", 2)).unlink()
    suspend(stage)


def delete_last_commit(stage: SourceHarness) -> None:
    log_file(stage, stage.version_of("orders", 4)).unlink()


def delete_commit_of_optimize(stage: SourceHarness) -> None:
    table = present(stage.lake.open(ORDERS))
    table.optimize.compact()
    at = table.version()
    stage.land_object(stage.processor(), 5)
    log_file(stage, at).unlink()


def drop(stage: SourceHarness) -> None:
    shutil.rmtree(stage.root / "lake" / ORDERS)
    start(stage)


def drop_log(stage: SourceHarness) -> None:
    shutil.rmtree(stage.root / "lake" / ORDERS / "_delta_log")
    start(stage)


def lose_ledger(stage: SourceHarness) -> None:
    for name in ("checkpoint_store", "batch_metadata_store"):
        shutil.rmtree(stage.root / "lake" / paths.pipeline_control("shop", name))


def damage_checkpoint(stage: SourceHarness) -> None:
    folder = paths.checkpoint("shop", 1, 1)
    stage.objects.put(f"{folder}/metadata", b'{"id": "x"}')
    stage.objects.put(f"{folder}/offsets/4", b"")


CASES: dict[str, tuple[str, Callable[[SourceHarness], None]]] = {
    "file": ("A deleted or damaged data file", delete_file),
    "compacted file": ("A deleted or damaged data file", compact_and_delete_file),
    "file of another size": ("A deleted or damaged data file", truncate_file),
    "commit": ("A deleted log entry", delete_commit),
    "last commit": ("A deleted log entry", delete_last_commit),
    "commit of OPTIMIZE": ("A deleted log entry", delete_commit_of_optimize),
    "table": ("A dropped table", drop),
    "log of a table": ("A dropped table", drop_log),
    "ledger": ("A lost ledger", lose_ledger),
    "checkpoint": ("A lost checkpoint", damage_checkpoint),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_damaged_is_mended_by_the_commands_of_the_page(stage: SourceHarness, case: str) -> None:
    heading, damage = CASES[case]
    landed = stage.contents()
    damage(stage)
    batches = {int(key.rpartition("/")[2][:-5]) for key in stage.objects.list(paths.prepared_batch("shop", 1, 0)[:-17])}
    found = CliRunner().invoke(app, ["tables", "check", "shop"], env={"COLUMNS": "300"})
    assert found.exit_code == 11, found.output

    run(stage, heading)

    following = max(batches) + 1
    start(stage)
    stage.land_object(stage.processor(), following)
    after = stage.contents()
    assert all(landed[name] <= after[name] for name in ALL)
    assert {name: sum(rows.values()) for name, rows in after.items()} == {
        name: (2 if name != "quarantine" else 1) * following for name in ALL
    }
    assert all(count == 1 for name in ALL for count in (*stage.landed(name).values(),))


@pytest.mark.parametrize(
    ("damage", "flag", "of_recovery"),
    [(break_footer, "--deep", ""), (break_pages, "--full", "--full")],
    ids=["footer", "pages"],
)
def test_a_file_of_the_right_size_is_checked_and_recovered_as_deep_as_it_is_damaged(
    stage: SourceHarness, damage: Callable[[Path], None], flag: str, of_recovery: str
) -> None:
    before, path = stage.contents(), data_file(stage)
    damage(path)
    recover = ["recover", "files", "shop", "orders", *([of_recovery] if of_recovery else [])]

    assert "No damage found." in execute(["tables", "check", "shop"])
    found = CliRunner().invoke(app, ["tables", "check", "shop", flag], env={"COLUMNS": "400"})
    assert (found.exit_code, path.name in found.output, " ".join(recover) in found.output) == (11, True, True)
    if of_recovery:
        assert "No damage found" in execute(["recover", "files", "shop", "orders"])

    counted = execute(recover)
    assert path.name in counted
    assert "Nothing was changed" in counted
    assert path.name in CliRunner().invoke(app, ["tables", "check", "shop", flag], env={"COLUMNS": "400"}).output
    rows = re.search(r"--max-rows (\d+)", counted)
    assert rows is not None
    execute([*recover, "--max-rows", rows[1], "--no-dry-run"])

    assert "No damage found." in execute(["tables", "check", "shop", flag])
    assert stage.contents() == before


def test_a_file_with_other_rows_than_the_log_says_is_damaged(stage: SourceHarness) -> None:
    name, added = next(iter(state_at(stage.lake, stage.objects, ORDERS).files.items()))
    stats = json.loads(added["stats"])
    replaced = {**added, "stats": json.dumps({**stats, "numRecords": stats["numRecords"] + 1})}

    assert find_damaged_files(stage.lake, ORDERS, [added], depth="footer") == {}
    found = find_damaged_files(stage.lake, ORDERS, [replaced], depth="footer")
    assert found == {name[0]: f"has {stats['numRecords']} rows, and the log says {stats['numRecords'] + 1}"}


def test_a_mistake_in_one_table_is_undone_by_the_commands_of_the_page(stage: SourceHarness) -> None:
    before = stage.contents()
    table = present(stage.lake.open(ORDERS))
    table.delete("_seq >= 2")

    printed = run(stage, "A mistake in one table", BATCH="4")

    assert "undone" in printed
    assert stage.contents() == before


def test_a_bad_deploy_is_undone_by_the_commands_of_the_page(stage: SourceHarness) -> None:
    before = stage.contents()

    run(stage, "A bad deploy", BATCH="2")

    known = PipelineHome(stage.objects, "shop").generations.effective()
    assert (known.generation, known.current.start, known.current.first_batch) == (2, {"seq": 2}, 5)
    after = stage.contents()
    assert all(after[name] <= before[name] for name in ALL)
    assert set(stage.landed("orders")) == {(seq, position) for seq in (1, 2) for position in (2, 3)}


def test_nothing_is_damaged_where_nothing_is(stage: SourceHarness) -> None:
    found = CliRunner().invoke(app, ["tables", "check"])

    assert (found.exit_code, found.output.strip()) == (0, "No damage found.")


def test_unless_it_is_refused_a_dropped_table_is_made_anew_without_its_rows(
    stage: SourceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_start, "committed_batches", lambda *arguments: CommittedBatches({}, {}, 0))

    drop(stage)
    stage.land_object(stage.processor(), 5)

    assert {seq for seq, _ in stage.landed("orders")} == {5}


def test_without_a_look_at_what_is_there_rows_of_other_files_are_doubled(
    stage: SourceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = present(stage.lake.open(ORDERS))
    table.optimize.compact()
    stage.land_object(stage.processor(), 5)
    names = state_at(stage.lake, stage.objects, ORDERS).files
    compacted = max(names, key=lambda name: names[name]["size"])[0]
    (stage.root / "lake" / ORDERS / compacted).unlink()
    # Statistics that reach too far: batch 5 is whole in a file of its own.
    monkeypatch.setattr(lost_files, "_batches_in_files", lambda *arguments: (1, 2, 3, 4, 5))
    monkeypatch.setattr(lost_commits._LostRowStager, "_present_keys", lambda self, seqs: set())

    run(stage, "A deleted or damaged data file")

    assert {seq for (seq, _), count in stage.landed("orders").items() if count == 2} == {5}


def test_objects_that_are_gone_too_are_named_and_given_up_only_when_told(stage: SourceHarness) -> None:
    landed = stage.landed("orders")
    delete_file(stage)
    for name in (stage.root / "landing").iterdir():
        name.unlink()

    refused = CliRunner().invoke(app, ["recover", "files", "shop", "orders", "--max-rows", "9", "--no-dry-run"])
    assert isinstance(refused.exception, DeltaworksError)
    assert refused.exception.condition == "RELAND_OBJECTS_MISSING"
    assert stage.root.joinpath("lake", paths.rollback("shop", 1)).exists()
    execute(["recover", "files", "shop", "orders", "--allow-missing", "--no-dry-run"])

    assert stage.landed("orders") < landed
    execute(["tables", "check", "shop"])


def test_a_table_that_is_there_is_not_had_again(stage: SourceHarness) -> None:
    counted = CliRunner().invoke(app, ["recover", "table", "shop", "orders"])
    assert counted.exit_code == 0, counted.output
    assert "shop.orders exists" in counted.output

    refused = CliRunner().invoke(app, ["recover", "table", "shop", "orders", "--no-dry-run"])
    assert isinstance(refused.exception, DeltaworksError)
    assert refused.exception.condition == "TABLE_NOT_DROPPED"
