"""The state of tables that other engines wrote: compared with a model of the protocol and with deltalake."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.tables.log import (
    TableState,
    check_log,
    classify_log_files,
    list_log,
    read_commits,
    row_count,
    state_at,
    stats_of,
)
from deltaworks.testing import present
from tests.examples import examples
from tests.unit.tables.log_model import FORMS, KEY, Form, LogModel, Stats


@pytest.fixture
def model(tmp_path: Path) -> LogModel:
    return LogModel(tmp_path, features=("v2Checkpoint",))


def state(model: LogModel, version: int | None = None) -> TableState:
    return state_at(model.lake, open_objects(model.lake.storage), KEY, version)


def rows_by_file(found: TableState) -> dict[str, int | None]:
    return {path: row_count(added) for (path, _), added in found.files.items()}


def names_of(*names: str) -> list[str]:
    return [f"{KEY}/_delta_log/{name}" for name in names]


V7, V9 = f"{7:020d}", f"{9:020d}"
UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"


@pytest.mark.parametrize(
    ("names", "complete"),
    [
        ([f"{V7}.checkpoint.0000000001.0000000002.parquet"], None),
        # One of two parts and one of three are no checkpoint, although two files exist.
        ([f"{V7}.checkpoint.0000000001.0000000002.parquet", f"{V7}.checkpoint.0000000003.0000000003.parquet"], None),
        ([f"{V7}.checkpoint.{part:010d}.0000000002.parquet" for part in (1, 2)], (0, 1)),
        # Parts of an interrupted writer beside a complete set, and beside a single file.
        (
            [
                f"{V7}.checkpoint.0000000001.0000000002.parquet",
                f"{V7}.checkpoint.0000000001.0000000003.parquet",
                f"{V7}.checkpoint.0000000002.0000000002.parquet",
            ],
            (0, 2),
        ),
        ([f"{V7}.checkpoint.0000000001.0000000002.parquet", f"{V7}.checkpoint.parquet"], (1,)),
        ([f"{V7}.checkpoint.{part:010d}.0000000003.parquet" for part in (0, 1, 2)], None),
        ([f"{V7}.checkpoint.{part:010d}.0000000003.parquet" for part in (1, 2, 4)], None),
        ([f"{V7}.checkpoint.{UUID}.json"], (0,)),
        ([f"{V7}.checkpoint.{UUID}.parquet"], (0,)),
        ([f"{V7}.checkpoint.{UUID}.json", f"{V7}.checkpoint.parquet"], (1,)),
        ([f"{V7}.checkpoint.{UUID}.json", f"{V7}.checkpoint.0000000001.0000000002.parquet"], (0,)),
        ([f"{V7}.checkpoint.parquet.tmp", f"{V7}.crc", f"{V7}.{V9}.compacted.json", f"_sidecars/{UUID}.parquet"], None),
        ([f"_staged_commits/{V7}.{UUID}.json"], None),
    ],
)
def test_a_checkpoint_is_complete_with_all_files_of_the_same_one(
    names: list[str], complete: tuple[int, ...] | None
) -> None:
    found = classify_log_files(names_of(*names))

    expected = {} if complete is None else {7: tuple(names_of(*(names[index] for index in complete)))}
    assert found.checkpoints == expected
    assert found.commits == frozenset()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stats", ["text", "struct"])
def test_a_checkpoint_of_any_form_has_the_files_rows_and_transactions(
    model: LogModel, form: Form, stats: Stats
) -> None:
    for rows in (1, 2, 3):
        model.add(rows)
    model.remove(next(iter(model.now.rows)))
    model.set_transaction(4)
    model.checkpoint(form, stats=stats)
    model.expire_commits(model.newest + 1)
    model.add(5)

    found = state(model)

    assert rows_by_file(found) == model.now.rows
    assert found.rows == 10
    assert found.transactions == {"app": 4}
    assert all(added["dataChange"] for added in found.files.values())


def test_statistics_that_only_a_struct_has_are_read_in_the_form_of_text(model: LogModel) -> None:
    name = model.add(30)
    before = stats_of(state(model).files[name, ""])
    model.checkpoint("classic", stats="struct")
    model.expire_commits(model.newest + 1)

    after = stats_of(state(model).files[name, ""])

    assert after["numRecords"] == before["numRecords"] == 30
    for side in ("minValues", "maxValues"):
        at_before, at_after = (dt.datetime.fromisoformat(stats[side].pop("at")) for stats in (before, after))
        assert at_before == at_after
        assert before[side] == after[side]


def test_a_count_that_is_absent_is_unknown_and_not_zero(model: LogModel) -> None:
    model.add(3)
    assert state(model).rows == 3

    name = model.add(4, stats="none")
    found = state(model)

    assert row_count(found.files[name, ""]) is None
    assert found.rows is None


@pytest.mark.parametrize("stats", ["null", '"text"', "[]", '{"numRecords": null}', '{"numRecords": "3"}', "{", ""])
def test_statistics_without_a_number_of_rows_are_unknown(stats: str) -> None:
    assert row_count({"path": "a", "stats": stats}) is None


def test_a_checkpoint_whose_sidecar_is_missing_is_named(model: LogModel) -> None:
    model.add(1)
    model.checkpoint("v2_json")
    model.expire_commits(model.newest + 1)
    for sidecar in (model.log / "_sidecars").iterdir():
        sidecar.unlink()

    with pytest.raises(ContractError, match=r"TABLE_LOG_GAP.*_sidecars"):
        state(model)


OTHER_LAYOUTS = (
    "adaptiveMetadata",
    "catalogManaged",
    "catalogOwned-preview",
    "coordinatedCommits-preview",
    "featureOfTomorrow",
)


@pytest.mark.parametrize("feature", OTHER_LAYOUTS)
@pytest.mark.parametrize("where", ["commit", "checkpoint", "newer commit", "embedded"])
def test_a_table_whose_state_is_elsewhere_is_rejected_by_name(tmp_path: Path, feature: str, where: str) -> None:
    model = LogModel(tmp_path, features=() if where == "newer commit" else (feature,))
    model.add(1)
    if where == "newer commit":
        model.features = (feature,)
        model.commit({"protocol": model.protocol}, snapshot=model.now)
    elif where == "checkpoint":
        model.checkpoint()
        model.expire_commits(model.newest + 1)
    elif where == "embedded":
        # The state is in a commit that names a tree of metadata files; older commits are gone.
        model.commit({"checkpoint": {"protocol": model.protocol}}, snapshot=model.now)
        model.expire_commits(model.newest)
        model.commit(snapshot=model.now)

    log = list_log(open_objects(model.lake.storage), KEY)
    with pytest.raises(ContractError, match=f"TABLE_FEATURE_UNSUPPORTED.*{feature}"):
        check_log(model.lake, KEY, log)
    with pytest.raises(ContractError, match=f"TABLE_FEATURE_UNSUPPORTED.*{feature}"):
        state(model)


def test_a_newer_reader_version_is_rejected_by_name(tmp_path: Path) -> None:
    model = LogModel(tmp_path)
    model.commit({"protocol": {"minReaderVersion": 4, "minWriterVersion": 8}}, snapshot=model.now)

    with pytest.raises(ContractError, match="reader version 4"):
        state(model)


def test_opening_a_table_whose_state_is_elsewhere_names_the_feature(tmp_path: Path) -> None:
    model = LogModel(tmp_path, features=("adaptiveMetadata",))
    model.commit({"checkpoint": {"protocol": model.protocol}}, snapshot=model.now)
    model.expire_commits(model.newest)
    files = sorted(model.folder.rglob("*"))

    with pytest.raises(ContractError, match=r"TABLE_FEATURE_UNSUPPORTED.*adaptiveMetadata"):
        model.lake.open(KEY)
    with pytest.raises(ContractError, match=r"TABLE_FEATURE_UNSUPPORTED.*adaptiveMetadata"):
        model.lake.ensure(KEY, pa.schema([("n", pa.int64())]), user_metadata="{}")

    assert sorted(model.folder.rglob("*")) == files, "nothing was written"


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 4), st.sampled_from(["text", "none"])),
    st.tuples(st.just("remove"), st.integers(0, 20), st.booleans()),
    st.tuples(st.just("txn"), st.integers(1, 9), st.none()),
    st.tuples(st.just("checkpoint"), st.sampled_from(FORMS), st.sampled_from(["text", "struct"])),
    st.tuples(st.just("torn"), st.integers(2, 4), st.integers(0, 3)),
    st.tuples(st.just("expire"), st.none(), st.none()),
)


def apply(model: LogModel, steps: list[tuple[Any, Any, Any]]) -> None:
    """Writes the steps; commits expire only up to the newest complete checkpoint, as writers do it."""
    checkpoint = -1
    for kind, first, second in steps:
        if kind == "add":
            model.add(first, stats=second)
        elif kind == "remove" and model.now.rows:
            model.remove(sorted(model.now.rows)[first % len(model.now.rows)], is_dated=second)
        elif kind == "txn":
            model.set_transaction(first)
        elif kind == "checkpoint" and checkpoint != model.newest:
            model.checkpoint(first, parts=3, stats=second)
            checkpoint = model.newest
        elif kind == "torn":
            model.checkpoint("parts", parts=first + 3, written=min(second, first))
        elif kind == "expire" and checkpoint >= 0:
            model.expire_commits(checkpoint + 1)


@settings(max_examples=examples(60), deadline=None)
@given(steps=st.lists(STEPS, max_size=14))
def test_the_state_of_every_version_in_a_log_equals_that_of_the_model_and_of_deltalake(
    steps: list[tuple[Any, Any, Any]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = LogModel(Path(folder), features=("v2Checkpoint",))
        apply(model, steps)
        log = list_log(open_objects(model.lake.storage), KEY)
        oldest = log.oldest
        assert oldest is not None

        for version in range(oldest, model.newest + 1):
            if log.missing_commits(version):
                continue
            found, expected = state(model, version), model.snapshots[version]
            assert {path for path, _ in found.files} == set(expected.rows)
            assert found.transactions == expected.transactions
            for path, rows in rows_by_file(found).items():
                assert rows in (None, expected.rows[path])
                assert (rows is None) == ("stats" not in model.actions[path])

        opened = present(model.lake.open(KEY))
        assert opened.version() == model.newest
        assert set(pa.table(opened.get_add_actions()).column("path").to_pylist()) == set(model.now.rows)


def test_a_commit_may_lack_its_info_and_have_empty_lines(model: LogModel) -> None:
    (model.log / f"{1:020d}.json").write_text("\n\n" + json.dumps({"commitInfo": None}) + "\n")

    ((_, actions),) = read_commits(model.lake, KEY, [1])

    assert actions == [{"commitInfo": None}]
