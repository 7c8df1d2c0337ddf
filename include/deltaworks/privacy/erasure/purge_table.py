"""Purges the rows of people from one table in one commit, without a JVM.

Deletes every row that contains one of their tokens in any column. If the pipeline keeps anonymous rows, the tokens are
replaced instead. Rows that a deletion vector marks are still in the file and are treated in the same way. Files without
such rows stay, so the cost depends on the files, not on the number of requests. New files are read back before the
commit: a remaining token, or an unexpected row count, aborts the purge without changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import ERASE, user_metadata
from deltaworks.control.records.erasure import PurgedTable
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.events.collector_sequence_numbers import CollectorSequenceNumbers
from deltaworks.privacy.erasure.token_search import TokenSearch, combine_searches
from deltaworks.privacy.tokens.envelope_encryption import random_token
from deltaworks.tables.arrow_types import VARIANT_TYPE
from deltaworks.tables.commit import Step
from deltaworks.tables.files import WrittenFile
from deltaworks.tables.files_commit import FilesCommit
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import (
    Action,
    FileId,
    TableState,
    commit_history,
    file_id,
    is_absolute_path,
    read_commits,
    state_at,
)
from deltaworks.tables.rewrite import DataFiles, Rewrite, commit_rewrite
from deltaworks.tables.variant import replace_texts


@dataclass(slots=True)
class FileCount:
    """Counts of one file, from its content, not its statistics.

    Args:
        rows: rows that no deletion vector marks as deleted.
        hits: of these, rows with a searched token.
        matches_in_deleted_rows: rows with a searched token that a deletion vector marks as deleted, but that are still
            in the file.
        by_request: `hits` by request.
        sequence_numbers: collector sequence numbers of the rows.
    """

    rows: int = 0
    hits: int = 0
    matches_in_deleted_rows: int = 0
    by_request: Counter[str] = field(default_factory=Counter)
    sequence_numbers: CollectorSequenceNumbers = field(default_factory=CollectorSequenceNumbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSurvey:
    """Rows with searched tokens in one version of a table.

    Args:
        rows: all rows of the table.
        by_file: rows with a searched token by file; 0 if all such rows are marked as deleted.
        by_request: rows with a searched token by request.
        dates: rows with a searched token by value of the first partition column, such as a date.
        matches_in_deleted_rows: rows with a searched token that are marked as deleted, in all files.
        sequence_numbers: collector sequence numbers of `hits`.
    """

    version: int
    rows: int
    by_file: Mapping[FileId, int] = field(default_factory=dict)
    by_request: Mapping[str, int] = field(default_factory=dict)
    dates: Mapping[str, int] = field(default_factory=dict)
    matches_in_deleted_rows: int = 0
    sequence_numbers: CollectorSequenceNumbers = field(default_factory=CollectorSequenceNumbers)

    @property
    def hits(self) -> int:
        """Number of rows with a searched token."""
        return sum(self.by_file.values())


class TokenReplacer:
    """Replaces tokens consistently: one object replaces the same token always by the same random one."""

    def __init__(self, search: TokenSearch) -> None:
        self._search = search
        self._random_by_token: dict[str, str] = {}

    def replace(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows with replaced tokens. Use small batches, since every value is converted to Python."""
        columns = []
        for column in rows.columns:
            replace = self._replace_variant if _is_variant(column.type) else self._replace_value
            columns.append(pa.array(map(replace, column.to_pylist()), column.type))
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def _replace_variant(self, value: Mapping[str, bytes] | None) -> Mapping[str, bytes] | None:
        return None if value is None else replace_texts(value, self._replace_text)

    def _replace_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._replace_text(value)
        if isinstance(value, bytes):
            return self._replace_text(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if isinstance(value, dict):
            return {name: self._replace_value(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._replace_value(item) for item in value)
        return value

    def _replace_text(self, text: str) -> str:
        if text in self._search.tokens:
            return self._random_token(text)
        for token in self._search.tokens_in_bytes(text.encode("utf-8", "surrogateescape")):
            text = text.replace(token, self._random_token(token))
        return text

    def _random_token(self, token: str) -> str:
        if token not in self._random_by_token:
            self._random_by_token[token] = random_token()
        return self._random_by_token[token]


def _is_variant(kind: pa.DataType) -> bool:
    """Returns whether a column has variants. Spark writes their parts in another order."""
    return pa.types.is_struct(kind) and {*kind.fields} == {*VARIANT_TYPE}


Mode = Literal["rows", "identity"]
#: Adds the collector sequence numbers of rows to a set of numbers.
SequenceNumberRecorder = Callable[[pa.RecordBatch, CollectorSequenceNumbers], None]


class TablePurger:
    """Counts and purges rows of one table. Not thread-safe.

    Args:
        key: key of the table in the given lake.
        requests: token search by request id.
        search: search for the rows to purge, if these are more than the rows of the requests.
        record_sequence_numbers: records collector sequence numbers of purged rows.
    """

    def __init__(
        self,
        lake: Lake,
        objects: ObjectStore,
        key: str,
        *,
        pipeline: str,
        table: str,
        requests: Mapping[str, TokenSearch],
        search: TokenSearch | None = None,
        record_sequence_numbers: SequenceNumberRecorder | None = None,
    ) -> None:
        self._lake = lake
        self._objects = objects
        self._key = key
        self._pipeline = pipeline
        self._table = table
        self._requests = requests
        self._search = search or combine_searches(requests.values())
        self._replacer = TokenReplacer(self._search)
        self._record_sequence_numbers = record_sequence_numbers
        self._file_counts: dict[FileId, FileCount] = {}

    def survey(self, state: TableState | None = None) -> TableSurvey:
        """Counts matching rows in the newest version, or the given one. Counts of unchanged files are cached.

        Raises:
            ContractError: DATA_FILE_MISSING, DATA_FILE_UNREADABLE, ERASURE_FILE_SHARED, and errors of reading the log.
        """
        if state is None and self._lake.open(self._key) is None:
            return TableSurvey(version=-1, rows=0)
        state = state or state_at(self._lake, self._objects, self._key)
        files = DataFiles(self._lake, state)
        partition = next(iter(state.metadata.get("partitionColumns") or ()), "")
        by_file: dict[FileId, int] = {}
        by_request: Counter[str] = Counter()
        dates: Counter[str] = Counter()
        rows = marked = 0
        numbers = CollectorSequenceNumbers()
        for name, added in state.files.items():
            if name not in self._file_counts:
                self._file_counts[name] = self._count_file(files, added)
            counted = self._file_counts[name]
            rows, marked = rows + counted.rows, marked + counted.matches_in_deleted_rows
            if counted.hits or counted.matches_in_deleted_rows:
                by_file[name] = counted.hits
            if counted.hits:
                by_request.update(counted.by_request)
                numbers.merge(counted.sequence_numbers)
                dates[str((added.get("partitionValues") or {}).get(partition, ""))] += counted.hits
        return TableSurvey(
            version=state.version,
            rows=rows,
            by_file=by_file,
            by_request=dict(by_request),
            dates=dict(dates),
            matches_in_deleted_rows=marked,
            sequence_numbers=numbers,
        )

    def purge(
        self, step: Step, *, mode: Mode = "rows", before_commit: Callable[[], None] = lambda: None
    ) -> PurgedTable:
        """Purges rows in one commit. Idempotent per step. Commits nothing if no row matches.

        Call it under the table's write turn. Rows of concurrent appends are purged too; after a concurrent commit, only
        files that it added are read and rewritten.

        Args:
            mode: `identity` keeps the rows and replaces their tokens by random ones, which are recorded nowhere.
            before_commit: called before each attempt; an error aborts the purge without a commit.

        Raises:
            ContractError: ERASURE_MISCOUNTED, RESTORE_UNSUPPORTED, and errors of `survey`.
            ConcurrencyError: COMMIT_CONTENDED.
        """
        survey = TableSurvey(version=-1, rows=0)
        if self._lake.open(self._key) is None:
            return self._untouched(survey)
        new_files: dict[FileId, list[WrittenFile]] = {}
        purge: PurgedTable | None = None

        def rewrite(state: TableState, files: DataFiles) -> Rewrite | None:
            nonlocal survey, purge
            survey = self.survey(state)
            if not survey.by_file:
                return None
            for name, hits in survey.by_file.items():
                if name not in new_files:
                    new_files[name] = self._rewrite_file(files, state.files[name], hits, mode)
            added = [file for name in survey.by_file for file in new_files[name]]
            purge = self._purge_record(survey, added, mode)
            return Rewrite(
                removed=[state.files[name] for name in survey.by_file],
                added=added,
                user_metadata=self._user_metadata(step, purge),
            )

        # A generic predicate: the real one would write the erased tokens to the log.
        commit = FilesCommit(
            step=step,
            operation="DELETE",
            parameters={"predicate": '["erased"]'},
            action="purge an erased person's rows from it",
        )
        outcome = commit_rewrite(
            self._lake, self._objects, self._key, rewrite, commit=commit, before_commit=before_commit
        )
        if outcome is None:
            return self._untouched(survey)
        if not outcome.newly_committed or purge is None:
            return self._committed_purge(outcome.version, step)
        return self._recount(purge, outcome.version)

    def _count_file(self, files: DataFiles, added: Action) -> FileCount:
        counted = FileCount()
        for batch, alive in self._read(files, added, dictionary_encoded=True):
            mask = self._search.matching_rows(batch)
            hits = mask if alive is None else mask & alive
            counted.rows += batch.num_rows if alive is None else int(alive.sum())
            counted.hits += int(hits.sum())
            counted.matches_in_deleted_rows += int(mask.sum()) - int(hits.sum())
            if hits.any():
                matching = batch.filter(pa.array(hits))
                for request, search in self._requests.items():
                    counted.by_request[request] += int(search.matching_rows(matching).sum())
                if self._record_sequence_numbers is not None:
                    self._record_sequence_numbers(matching, counted.sequence_numbers)
        return counted

    def _read(
        self, files: DataFiles, added: Action, *, dictionary_encoded: bool = False
    ) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.bool_] | None]]:
        """Reads a file; see `DataFiles.read_with_deleted`.

        Raises:
            ContractError: ERASURE_FILE_SHARED, it belongs to another table; DATA_FILE_MISSING or
                DATA_FILE_UNREADABLE, so the people of its rows are unknown.
        """
        if is_absolute_path(added["path"]):
            raise ContractError(
                "ERASURE_FILE_SHARED",
                f"{self._key} has a file with an absolute path, which belongs to another table too.",
            )
        yield from files.read_with_deleted(added, dictionary_encoded=dictionary_encoded)

    def _rewrite_file(self, files: DataFiles, added: Action, hits: int, mode: Mode) -> list[WrittenFile]:
        before = 0

        def parts() -> Iterator[pa.RecordBatch]:
            nonlocal before
            for batch, alive in self._read(files, added):
                rows = batch if alive is None else batch.filter(pa.array(alive))
                before += rows.num_rows
                mask = self._search.matching_rows(rows)
                yield rows.filter(pa.array(~mask))
                if mode == "identity" and mask.any():
                    yield self._replacer.replace(rows.filter(pa.array(mask)))

        written = files.write(added.get("partitionValues") or {}, parts())
        rows = remaining_hits = 0
        for new in written:
            for batch, _ in self._read(files, new.to_add_fields(at_ms=0, data_change=True)):
                rows += batch.num_rows
                remaining_hits += int(self._search.matching_rows(batch).sum())
        if remaining_hits or rows != (before if mode == "identity" else before - hits):
            raise ContractError(
                "ERASURE_MISCOUNTED",
                f"{self._key}/{added['path']} has {before:,} rows, {hits:,} of them to purge; after the rewrite "
                f"it has {rows:,}, {remaining_hits:,} of them to purge. Nothing was committed.",
            )
        return written

    def _purge_record(self, survey: TableSurvey, written: Sequence[WrittenFile], mode: Mode) -> PurgedTable:
        purged_rows = 0 if mode == "identity" else survey.hits
        return PurgedTable(
            pipeline=self._pipeline,
            table=self._table,
            version=None,
            at_ms=0,
            rows_before=survey.rows,
            erased_before=survey.hits,
            rows_after=survey.rows - purged_rows,
            erased_after=0,
            other_rows_before=survey.rows - survey.hits,
            other_rows_after=survey.rows - survey.hits,
            by_request=dict(survey.by_request),
            dates=dict(survey.dates),
            removed_files=tuple(sorted(name for name, _ in survey.by_file)),
            bytes_written=sum(file.size for file in written),
            collector_numbers={} if mode == "identity" else survey.sequence_numbers.encode(),
        )

    def _user_metadata(self, step: Step, purge: PurgedTable) -> str:
        return user_metadata(
            pipeline=self._pipeline,
            batch="none",
            operation=ERASE,
            step=step.app_id,
            step_version=step.version,
            rows_before=purge.rows_before,
            rows_after=purge.rows_after,
            erased=purge.erased_before,
            requests=purge.by_request,
            dates=purge.dates,
            **({"collector_numbers": purge.collector_numbers} if purge.collector_numbers else {}),
        )

    def _recount(self, purge: PurgedTable, version: int) -> PurgedTable:
        """Counts matching rows in the committed version again."""
        state = state_at(self._lake, self._objects, self._key, version)
        survey = self.survey(state)
        return purge.replace(
            version=version,
            at_ms=self._committed_at(version),
            rows_after=survey.rows,
            erased_after=survey.hits + survey.matches_in_deleted_rows,
            other_rows_after=survey.rows - survey.hits - (purge.rows_after - purge.other_rows_before),
        )

    def _committed_at(self, version: int) -> int:
        commit = next(commit_history(self._lake, self._key, newest=version, limit=1))
        return int(commit.at.timestamp() * 1000)

    def _untouched(self, survey: TableSurvey) -> PurgedTable:
        return PurgedTable.unchanged(self._pipeline, self._table, rows=survey.rows)

    def _committed_purge(self, version: int, step: Step) -> PurgedTable:
        """Returns the result of an earlier purge under this step from its commit, or None."""
        for commit in commit_history(self._lake, self._key, newest=version):
            metadata = commit.metadata
            if (metadata.get("step"), metadata.get("step_version")) == (step.app_id, step.version):
                rows_before, erased = int(metadata["rows_before"]), int(metadata["erased"])
                purge = PurgedTable(
                    pipeline=self._pipeline,
                    table=self._table,
                    version=commit.version,
                    at_ms=int(commit.at.timestamp() * 1000),
                    rows_before=rows_before,
                    erased_before=erased,
                    rows_after=int(metadata["rows_after"]),
                    erased_after=0,
                    other_rows_before=rows_before - erased,
                    other_rows_after=rows_before - erased,
                    by_request=dict(metadata["requests"]),
                    dates=dict(metadata["dates"]),
                    removed_files=removed_paths(self._lake, self._key, commit.version),
                    collector_numbers=dict(metadata.get("collector_numbers") or {}),
                )
                return self._recount(purge, commit.version)
        raise ConcurrencyError(
            "COMMIT_CONTENDED",
            f"{self._key} contains purge {step.version}, but the commit is no longer in its log.",
            hint="Start another window: it finds no rows and records that.",
        )


def erasure_step(pipeline: str, table: str, window: int) -> Step:
    """Returns the transaction id of purging one table in one window."""
    return Step(f"{pipeline}/erasure/{table}", window)


def removed_paths(lake: Lake, key: str, version: int) -> tuple[str, ...]:
    """Returns the paths that a commit removed from the table."""
    ((_, actions),) = read_commits(lake, key, [version])
    return tuple(sorted(file_id(action["remove"])[0] for action in actions or () if "remove" in action))
