"""The lists of table features, held to the installed deltalake: each one is tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.tables import features, vacuum_candidates
from deltaworks.tables.commit import Step
from deltaworks.tables.features import FILE_COMMIT_FEATURES, SUPPORTED_FEATURES, reasons_to_use_spark
from deltaworks.tables.files_commit import FilesCommit, TargetState, commit_files, reasons_against_files_commit
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import state_at
from deltaworks.tables.table_swap import _RECREATABLE_FEATURES
from deltaworks.testing import append_rows, local_lake, present

KEY = "tables/shop/orders"
ROWS = pa.table({"n": [1, 2]})
#: Features that a reader must know too.
LOG_FEATURES = features._READABLE_LOG_FEATURES
READER_FEATURES = LOG_FEATURES | {"catalogManaged", "adaptiveMetadata", "geospatial"}
#: Every feature of Delta 4.4, and one that does not exist.
KNOWN = sorted(
    FILE_COMMIT_FEATURES
    | READER_FEATURES
    | {
        "checkpointProtection",
        "clustering",
        "collations-preview",
        "coordinatedCommits-preview",
        "domainMetadata",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "icebergWriterCompatV1",
        "inCommitTimestamp",
        "materializePartitionColumns",
        "rowTracking",
        "featureOfTomorrow",
    }
)


def lake_with_protocol(root: Path, protocol: dict[str, Any]) -> Lake:
    """A lake with a table of one file, and this protocol in its first commit."""
    lake = local_lake(root)
    append_rows(lake, KEY, ROWS, app_id="before")
    first = root / KEY / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    changed = [{"protocol": protocol} if "protocol" in action else action for action in actions]
    first.write_text("\n".join(json.dumps(action) for action in changed))
    return lake


def lake_with(root: Path, feature: str) -> Lake:
    reader = feature in READER_FEATURES
    protocol = {"minReaderVersion": 3 if reader else 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    return lake_with_protocol(root, protocol | ({"readerFeatures": [feature]} if reader else {}))


def opened(lake: Lake) -> DeltaTable:
    return present(lake.open(KEY))


def append(lake: Lake, table: DeltaTable) -> None:
    lake.append(table, KEY, ROWS, step=Step("after", 1), user_metadata="{}")


@pytest.mark.parametrize("feature", sorted(SUPPORTED_FEATURES))
def test_a_table_with_a_harmless_feature_is_read_and_appended_to(tmp_path: Path, feature: str) -> None:
    lake = lake_with(tmp_path, feature)
    table = opened(lake)
    assert reasons_to_use_spark(table) == []

    append(lake, table)
    table.create_checkpoint()

    assert state_at(lake, open_objects(lake.storage), KEY).rows == 4
    assert pa.RecordBatchReader.from_stream(opened(lake).scan()).read_all().num_rows == 4


@pytest.mark.parametrize("feature", KNOWN)
def test_a_commit_that_delta_rs_would_reject_goes_through_spark(tmp_path: Path, feature: str) -> None:
    lake = lake_with(tmp_path, feature)
    try:
        table = opened(lake)
    except (ContractError, DeltaError):
        return
    if reasons_to_use_spark(table):
        return

    version = table.version()
    append(lake, table)
    assert opened(lake).version() == version + 1


@pytest.mark.parametrize("writer", range(1, 9))
def test_a_writer_version_that_delta_rs_rejects_goes_through_spark(tmp_path: Path, writer: int) -> None:
    lists: dict[str, Any] = {"writerFeatures": []} if writer == 7 else {}
    lake = lake_with_protocol(
        tmp_path, {"minReaderVersion": 2 if writer in (5, 6) else 1, "minWriterVersion": writer, **lists}
    )
    table = opened(lake)
    reasons = reasons_to_use_spark(table)

    assert reasons == ([f"writer version {writer}"] if writer in (6, 8) else [])
    if not reasons:
        append(lake, table)


@pytest.mark.parametrize("feature", sorted(FILE_COMMIT_FEATURES))
def test_files_of_a_table_with_a_harmless_feature_are_moved_in_and_out(tmp_path: Path, feature: str) -> None:
    lake = lake_with(tmp_path, feature)
    objects = open_objects(lake.storage)
    before = state_at(lake, objects, KEY)
    assert reasons_against_files_commit(before) == []

    commit_files(lake, objects, KEY, lambda now: TargetState({}), commit=FilesCommit(step=Step("out", 1)))
    commit_files(lake, objects, KEY, lambda now: TargetState(before.files), commit=FilesCommit(step=Step("back", 1)))

    assert state_at(lake, objects, KEY).rows == 2
    assert pa.table(opened(lake).get_add_actions()).column("num_records").to_pylist() == [2]


def test_features_that_can_be_recreated_are_among_those_that_can_be_committed() -> None:
    assert _RECREATABLE_FEATURES <= SUPPORTED_FEATURES


@pytest.mark.parametrize("feature", KNOWN)
def test_the_unneeded_files_of_a_table_are_determined_here_only_with_known_features(
    tmp_path: Path, feature: str
) -> None:
    lake = lake_with(tmp_path, feature)
    try:
        table = opened(lake)
    except (ContractError, DeltaError):
        return
    known = feature in vacuum_candidates._SUPPORTED_FEATURES

    assert bool(vacuum_candidates.reasons_against_vacuum(table)) != known
    if known:
        candidates = vacuum_candidates.candidates_by_listing(lake, KEY, table, before_ms=2**60)
        assert not candidates.files


@pytest.mark.parametrize("feature", KNOWN)
def test_a_log_is_read_as_by_deltalake_or_rejected_by_name(tmp_path: Path, feature: str) -> None:
    lake = lake_with(tmp_path, feature)
    if feature in features._OTHER_LAYOUTS or (feature in READER_FEATURES and feature not in LOG_FEATURES):
        with pytest.raises(ContractError, match=f"TABLE_FEATURE_UNSUPPORTED.*{feature}"):
            state_at(lake, open_objects(lake.storage), KEY)
        return

    found = state_at(lake, open_objects(lake.storage), KEY)

    # What is read here is never a table that deltalake rejects.
    assert [path for path, _ in found.files] == pa.table(opened(lake).get_add_actions()).column("path").to_pylist()
