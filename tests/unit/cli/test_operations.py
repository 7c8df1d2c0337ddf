"""Commands for operating a stream, on a small project without a JVM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.cli import context as cli_context
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError, ContractError
from deltaworks.specs.project import load_catalog
from deltaworks.testing import declare_pipeline, declare_table, load_project, write_files
from tests.commands import output_of
from tests.unit.engine.ledger_harness import Harness

EVENT = '{"name": "a", "time": 1700000000, "device": "d"}'
Run = Callable[..., str]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two complete batches of two objects with three events each, and a prepared third batch."""
    spec = load_project(tmp_path, declare_pipeline(declare_table("events", "device string"))).pipeline("shop")
    write_files(tmp_path / "landing" / "day", {f"{number}.json": "\n".join([EVENT] * 3) for number in range(1, 11)})
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    monkeypatch.setattr(cli_context, "apply_settings", lambda: None)
    monkeypatch.setenv("COLUMNS", "240")
    harness = Harness(tmp_path / "lake", spec)
    harness.complete(0)
    harness.complete(1)
    harness.prepare(2)
    PipelineHome(harness.objects, "shop").specs.record_start(spec, owner_epoch=1)
    return tmp_path


@pytest.fixture
def run(project: Path) -> Run:
    return output_of


def edit(project: Path, old: str, new: str) -> None:
    path = project / "include" / "pipelines" / "shop" / "pipeline.yaml"
    path.write_text(path.read_text().replace(old, new))


def test_batches_are_listed_including_the_incomplete_one(run: Run) -> None:
    listed = run("batches", "shop")

    assert [line.split()[:3] for line in listed.splitlines() if "shop__stream/1" in line] == [
        ["1", "0", "complete"],
        ["1", "1", "complete"],
        ["1", "2", "prepared"],
    ]
    assert len([line for line in run("batches", "shop", "--last", "1").splitlines() if "shop__stream/1" in line]) == 1


def test_one_batch_is_shown_with_its_steps_and_objects(run: Run) -> None:
    shown = run("batches", "shop", "--id", "1")

    assert "after 2 up to 4" in shown
    assert "quarantine" in shown
    assert "day/3.json" in shown
    assert "day/1.json" not in shown
    with pytest.raises(ConfigError, match="BATCH_UNKNOWN"):
        run("batches", "shop", "--id", "9")


def test_query_results_are_printed_unchanged_and_complete_in_a_pipe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "github." + "x" * 120

    shown = run("sql", f"SELECT 'renovate[bot]' AS who, '[/x]' AS event, '[link=a]b' AS object, '{long}' AS place")

    header, row = shown.splitlines()
    assert header.split() == ["who", "event", "object", "place"]
    assert row.split() == ["renovate[bot]", "[/x]", "[link=a]b", long]


def test_a_declared_table_that_does_not_exist_yet_is_reported(run: Run, project: Path) -> None:
    edit(project, "tables:\n", "tables:\n- {name: orders, when: {name: order}}\n")

    with pytest.raises(ConfigError, match=r"Table shop\.orders is declared but does not exist yet") as caught:
        run("sql", "SELECT * FROM shop.orders")

    assert "deltaworks status" in caught.value.hint


def test_invalid_sql_is_rejected_on_one_line(run: Run) -> None:
    with pytest.raises(ConfigError) as caught:
        run("sql", "SELECT 1,\nx FORM y z")

    assert caught.value.condition == "SQL_REFUSED"
    assert "\n" not in caught.value.message
    assert caught.value.message.endswith("(line 2)")


def test_a_count_of_a_reprocess_needs_no_jvm_and_changes_nothing(run: Run, project: Path) -> None:
    before = sorted(path for path in (project / "lake").rglob("*"))

    counted = run("reprocess", "shop", "--from-start")

    assert "4 objects" in counted
    assert "events" in counted
    assert [line.split()[-1] for line in counted.splitlines() if line.startswith("events ")] == ["12"]
    assert "Nothing was changed" in counted
    assert sorted(path for path in (project / "lake").rglob("*")) == before


def test_a_pipeline_without_a_recorded_spec_is_not_reprocessed(run: Run, project: Path) -> None:
    (project / "lake" / paths.current_spec("shop")).unlink()

    with pytest.raises(ContractError, match="REPROCESS_SPEC_DIFFERS"):
        run("reprocess", "shop", "--from-start")


def test_a_diff_shows_effects_and_whether_the_stream_will_start(run: Run, project: Path) -> None:
    assert "last ran with the current pipeline.yaml" in run("pipelines", "diff", "shop")

    edit(project, "owner: tests", "owner: others")
    told = run("pipelines", "diff", "shop")
    assert "safe" in told
    assert "will start" in told

    edit(project, "path: device", "path: params.device")
    refused = run("pipelines", "diff", "shop", exit_code=11)
    assert "mixed_rows" in refused
    assert "not start" in refused


def test_an_accepted_edit_lets_the_stream_start(run: Run, project: Path) -> None:
    edit(project, "path: device", "path: params.device")

    accepted = run("pipelines", "diff", "shop", "--accept", "--reason", "the producer moved it")

    assert "Accepted: tables.events.columns.device.path" in accepted
    assert "will start" in accepted
    objects = LocalObjects(project / "lake")
    PipelineHome(objects, "shop").specs.check(load_catalog("local", root=project).pipeline("shop"))


def test_a_pipeline_starts_over_only_without_dry_run_and_within_the_limit(project: Path, run: Run) -> None:
    objects = LocalObjects(project / "lake")
    objects.delete(paths.prepared_batch("shop", 1, 2))

    shown = run("pipelines", "start-over", "shop")
    with pytest.raises(ConfigError, match="START_OVER_UNBOUNDED"):
        run("pipelines", "start-over", "shop", "--no-dry-run")
    assert objects.get(paths.start_over("shop", 2)) is None
    done = run("pipelines", "start-over", "shop", "--no-dry-run", "--max-rows", "0", "--reason", "another source")

    assert "Generation 2 begins with batch 2." in shown
    assert "Nothing was changed." in shown
    assert "deltaworks start shop" in done
    fixed = PipelineHome(objects, "shop").start_overs.read(2)
    assert fixed is not None
    assert (fixed.reason, fixed.first_batch) == ("another source", 2)
    assert "Generation 3" in run("pipelines", "start-over", "shop")


def test_facts_about_a_batches_input_are_formatted() -> None:
    from deltaworks.cli.files import source_facts

    source = {
        "oldest_arrived_at": "2026-01-01T00:00:00+00:00",
        "rejected": [["type_mismatch", "level", 1_200], ["malformed", "", 3]],
    }

    assert source_facts(source) == {
        "source oldest_arrived_at": "2026-01-01T00:00:00+00:00",
        "source rejected": "1,200 type_mismatch at level, 3 malformed",
    }


@pytest.mark.parametrize("columns", [80, 120])
def test_batches_are_one_line_each_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    lines = run("batches", "shop").splitlines()
    details = run("batches", "shop", "--id", "1").splitlines()

    assert [line for line in (*lines, *details) if len(line) > columns] == []
    monkeypatch.delenv("COLUMNS")
    rows = len(run("batches", "shop").splitlines()) - 1
    assert len(lines) <= rows + 2, "a header, the batches, and what --wide also shows"
