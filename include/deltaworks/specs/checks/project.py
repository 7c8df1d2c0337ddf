"""Checks all specs of a project and reports the errors and warnings of all files.

Finds errors that prevent a stream from starting, and errors that would only fail later, in a build or schedule. Warns
if the cluster lacks room for all streams and, at the same time, one job of each class. Hints at JSON paths in another
notation, such as `payload/page` instead of `payload.page`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import KeyPath, Spec, describe_duration, suggest_name
from deltaworks.specs.catalog import project_root
from deltaworks.specs.checks.gold_sql import gold_sql_errors
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.collector_file import collector_files, collector_problems
from deltaworks.specs.cross_checks import ProjectNames, cross_check_errors, environment_problems
from deltaworks.specs.dag_ids import SPARK_CONNECT_DAG, dag_id
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.gold import STREAM_LAG, cross_pipeline_table
from deltaworks.specs.groups import stream_dag_id
from deltaworks.specs.loading import NO_KEYS, read_declaration
from deltaworks.specs.notice_delay import notice_delay
from deltaworks.specs.overrides import Overrides, overrides_of, unused_overrides
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import pipeline_files, selected_pipelines
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.share_conf import connect_share, stream_share
from deltaworks.specs.shares import ClusterShares, ClusterSpec, JobClass, Share
from deltaworks.specs.sources import DeltaSourceSpec, FileSourceSpec
from deltaworks.specs.spec_errors import SpecError, closest_match
from deltaworks.specs.validation_errors import Declaration, to_spec_errors
from deltaworks.specs.weak_secrets import LOCAL, check_secrets
from deltaworks.specs.yaml_reader import InvalidYamlError

_CLUSTER_KEY: KeyPath = ("shares", "cluster")


def cluster_warnings(environment: EnvironmentSpec, pipelines: Sequence[PipelineSpec]) -> Iterator[tuple[KeyPath, str]]:
    """Yields warnings about jobs that would wait for executors, with key paths in the environment.

    Streams never release their executors. A job that does not fit while all streams run waits forever. A job that fits
    only while other job classes are idle waits for them. Without a declared cluster only the stream pool's slots are
    checked.
    """
    cluster, stream = environment.shares.cluster, environment.shares.of("stream")
    slots = environment.shares.pools()[stream.pool].slots
    streams = _streams(environment, pipelines)
    if len(streams) > slots:
        number = f"{len(streams)} streams need as many slots, and the pool {stream.pool!r} has {slots}"
        yield ("shares", "stream", "slots"), f"{number}; some streams wait forever"
    if cluster is None:
        return
    jobs: dict[str, Share] = {name: environment.shares.of(name) for name in _job_classes(pipelines)}
    if (text := _capacity_excess(cluster, streams, {})) is not None:
        yield _CLUSTER_KEY, f"the streams do not fit: {text}; some wait forever"
        return
    blocked = {name: _capacity_excess(cluster, streams, {name: _minimum_share(share)}) for name, share in jobs.items()}
    for name, text in blocked.items():
        if text is not None:
            yield _CLUSTER_KEY, f"{text}; a {name} job waits forever"
    if not any(blocked.values()) and (text := _capacity_excess(cluster, streams, jobs)) is not None:
        yield _CLUSTER_KEY, f"{text}; jobs of one class wait for those of another"


def _streams(environment: EnvironmentSpec, pipelines: Sequence[PipelineSpec]) -> dict[str, Share]:
    """Returns the resources of all continuous drivers by DAG id. A stream group has the resources of one stream, the
    Spark Connect server one executor: it gives idle ones back.
    """
    server = environment.spark_connect
    own = {} if server is None else {SPARK_CONNECT_DAG: _minimum_share(connect_share(server, environment))}
    return own | {
        stream_dag_id(spec.pipeline, spec.stream_group): (
            stream_share(spec, environment) if spec.stream_group is None else environment.shares.of_stream()
        )
        for spec in pipelines
    }


def _job_classes(pipelines: Sequence[PipelineSpec]) -> Iterator[JobClass]:
    """Yields the classes of jobs that these pipelines run, except streams."""
    if any(spec.gold.tables for spec in pipelines):
        yield "gold"
    if any(spec.mutations is not None for spec in pipelines):
        yield "mutation"
    yield from ("maintenance", "reprocess")


def _minimum_share(share: Share) -> Share:
    """Returns the least resources with which the job can start: one executor."""
    return replace(share, executors=1)


def _capacity_excess(cluster: ClusterSpec, streams: dict[str, Share], jobs: dict[str, Share]) -> str | None:
    """Returns the sum that exceeds the cluster, as text; None if all jobs fit at the same time."""
    shares = streams | jobs
    cores = {name: share.cores for name, share in shares.items()}
    if sum(cores.values()) > cluster.cores:
        return f"{_format_terms(cores)} are {sum(cores.values())} cores, and the cluster has {cluster.cores}"
    memory = {name: share.memory_bytes >> 20 for name, share in shares.items()}
    if sum(memory.values()) > cluster.memory_bytes >> 20:
        available = cluster.memory_bytes >> 20
        return f"{_format_terms(memory)} are {sum(memory.values())} MB of executors, and the cluster has {available}"
    return None


def _format_terms(parts: dict[str, int]) -> str:
    return " + ".join(f"{name} {number}" for name, number in parts.items())


def json_path_errors(spec: PipelineSpec, declaration: Declaration) -> Iterator[SpecError]:
    """Yields an error for each JSON path that uses separators other than dots, such as slashes.

    Column names in files (CSV, Parquet) can contain slashes, and so can a name in a dotted path, such as
    `units.USD/shares`.
    """
    if spec.source.format != "json":
        return
    for key_path, path in declared_paths(spec):
        if "/" in path and "`" not in path and ("." not in path or path.startswith("/")) and path.strip("/"):
            suggestion = path.strip("/").replace("/", ".")
            yield declaration.error_at(key_path, f"separate the names of a path by dots: write {suggestion}")


def declared_paths(spec: PipelineSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yields all declared paths into events, with their key paths."""
    if spec.unwrap is not None:
        yield ("unwrap", "path"), spec.unwrap.path
        for index, path in enumerate(spec.unwrap.keep):
            yield ("unwrap", "keep", index), path
    if spec.event.name.path is not None:
        yield ("event", "name", "path"), spec.event.name.path
    times = spec.event.time.path
    for index, path in enumerate(times):
        yield ("event", "time", "path", *([index] if len(times) > 1 else [])), path
    for index, path in enumerate(spec.event.id):
        yield ("event", "id", index), path
    yield from ((("enrich", index, "path"), lookup.path) for index, lookup in enumerate(spec.enrich))
    yield from ((("private", index, "path"), private.path) for index, private in enumerate(spec.private))
    for index, table in enumerate(spec.tables):
        for name in table.when:
            yield ("tables", index, "when", name), name
        for position, column in enumerate(table.columns):
            yield ("tables", index, "columns", position, "path"), column.path


SpecType = TypeVar("SpecType", bound=Spec)


@dataclass(slots=True)
class ProjectCheck:
    """Errors and warnings of a project, and its valid pipelines and relays.

    Warnings do not fail the check. File paths are relative to the project folder.
    """

    errors: list[SpecError] = field(default_factory=list)
    warnings: list[SpecError] = field(default_factory=list)
    pipelines: dict[str, PipelineSpec] = field(default_factory=dict)
    relays: dict[str, RelaySpec] = field(default_factory=dict)


def check_project(environment: str | None = None, *, root: Path | None = None) -> ProjectCheck:
    """Checks all specs of a project. Only reads files; an error does not end the check.

    Raises:
        ConfigError: SPEC_MISSING if there is no such environment; PIPELINE_UNKNOWN for an unknown name in
            DELTAWORKS_PIPELINES.
    """
    checker = _ProjectChecker(root or project_root(), environment or os.environ.get("DELTAWORKS_ENVIRONMENT", LOCAL))
    checker.check_environment()
    checker.check_relays()
    checker.check_pipelines()
    checker.check_collectors()
    checker.check_overrides()
    checker.check_names()
    checker.check_cluster()
    return checker.result


class _ProjectChecker:
    """Collects errors and warnings of a project, one kind of spec after another."""

    def __init__(self, root: Path, environment: str) -> None:
        self.result = ProjectCheck()
        self._root = root
        self._name = environment
        self._file = root / "include" / "environments" / f"{environment}.yaml"
        self._environment: EnvironmentSpec | None = None
        self._relay_files = {path.stem: path for path in sorted((root / "include" / "relays").glob("*.yaml"))}
        self._pipeline_files = pipeline_files(root)
        self._collectors: dict[str, CollectorSpec] = {}

    def check_environment(self) -> None:
        """Checks the environment. If it is invalid, overrides are not checked."""
        if not self._file.is_file():
            read_declaration(self._file)  # raises
        declaration = self._read(self._file, Overrides())
        self._environment = self._spec(EnvironmentSpec, declaration) if declaration is not None else None
        if self._environment is not None:
            self._add(*self._weak_secrets(self._environment, self._file))

    def check_relays(self) -> None:
        """Checks all relays."""
        for name, path in self._relay_files.items():
            declaration = self._read(path, self._overrides(path, "relays", name))
            spec = self._spec(RelaySpec, declaration) if declaration is not None else None
            if spec is None or declaration is None:
                continue
            if spec.relay != name:
                text = f"the file is {path.name} and the relay {spec.relay!r}: give both the same name"
                self._add(declaration.error_at(("relay",), text))
            self.result.relays[name] = spec

    def check_pipelines(self) -> None:
        """Checks all pipelines. A spec that is valid by itself is checked against the project, with its SQL."""
        for path in selected_pipelines(self._pipeline_files):
            name = path.parent.name
            declaration = self._read(path, self._overrides(path, "pipelines", name))
            if declaration is None:
                continue
            spec = self._spec(PipelineSpec, declaration)
            if spec is None:
                continue
            errors = [
                *self._cross_check(spec, declaration),
                *gold_sql_errors(spec, declaration),
                *self._weak_secrets(spec, path),
            ]
            self._add(*sorted(dict.fromkeys(errors), key=lambda item: (item.file != path, item.file, item.line)))
            if errors:
                continue
            if not isinstance(spec.source, FileSourceSpec) or spec.source.relay in self.result.relays:
                self.result.pipelines[name] = spec
                self.result.warnings += [
                    self._with_relative_path(warning) for warning in _pipeline_warnings(spec, declaration)
                ]

    def check_collectors(self) -> None:
        """Checks all collectors."""
        for path in collector_files(self._root).values():
            declaration = self._read(path, Overrides())
            spec = self._spec(CollectorSpec, declaration) if declaration is not None else None
            if spec is not None and declaration is not None:
                self._collectors[path.stem] = spec
                problems = collector_problems(spec, path, self._pipeline_files)
                self._add(*(declaration.error_at(*problem[:2]) for problem in problems))

    def check_overrides(self) -> None:
        """Reports unused overrides: as an error if the name looks like a typo, as a warning otherwise."""
        if self._environment is None:
            return
        declaration = {"relays": set(self._relay_files), "pipelines": set(self._pipeline_files)}
        file = read_declaration(self._file)
        for unused in unused_overrides(self._environment, declaration):
            spec_error = file.error_at(unused.key_path, unused.text)
            if unused.variable is not None:
                spec_error = SpecError(self._file, 1, unused.variable, unused.text)
            (self.result.errors if unused.is_typo else self.result.warnings).append(
                self._with_relative_path(spec_error)
            )

    def check_names(self) -> None:
        """Checks alert routes and remediations: their pipelines, rules, labels and owners."""
        if self._environment is None:
            return
        names = ProjectNames(
            pipelines=self.result.pipelines, declared=self._pipeline_files, owners=self._process_owners()
        )
        problems = list(environment_problems(self._environment, names))
        if problems:
            file = read_declaration(self._file)
            self._add(*(file.error_at(*problem) for problem in problems))

    def _process_owners(self) -> dict[str, str]:
        """Returns the owner of each relay, collector and remediation; empty where its spec is invalid."""
        owners = dict.fromkeys((*self._relay_files, *collector_files(self._root)), "")
        remediations = self._environment.remediations if self._environment is not None else ()
        owners |= {name: relay.owner for name, relay in self.result.relays.items()}
        owners |= {name: collector.owner for name, collector in self._collectors.items()}
        return owners | {spec.name: spec.owner for spec in remediations}

    def check_cluster(self) -> None:
        """Warns if the cluster has too little capacity, so that jobs would wait."""
        if self._environment is None:
            return
        for key_path, text in cluster_warnings(self._environment, list(self.result.pipelines.values())):
            self.result.warnings.append(self._with_relative_path(read_declaration(self._file).error_at(key_path, text)))

    def _cross_check(self, spec: PipelineSpec, declaration: Declaration) -> Iterator[SpecError]:
        """Checks a pipeline against its environment. Errors in the relay's own spec are reported with the relay."""
        declared_here = self._environment
        yield from cross_check_errors(
            spec,
            declaration,
            relays=self._relay_files,
            invalid_relays={},
            shares=declared_here.shares if declared_here is not None else ClusterShares.defaults(),
            groups=declared_here.stream_groups if declared_here is not None else (),
            channels=declared_here.alerts.channel_kinds if declared_here is not None else None,
        )
        yield from json_path_errors(spec, declaration)
        yield from self._source_errors(spec, declaration)

    def _source_errors(self, spec: PipelineSpec, declaration: Declaration) -> Iterator[SpecError]:
        source = spec.source
        name = source.pipeline if isinstance(source, DeltaSourceSpec) else None
        if name is not None and name not in self._pipeline_files:
            text = f"there is no pipeline {name!r}; {suggest_name(name, self._pipeline_files)}"
            yield declaration.error_at(("source", "pipeline"), text)
        relay = self.result.relays.get(source.relay) if isinstance(source, FileSourceSpec) else None
        if relay is None or not isinstance(source, FileSourceSpec) or source.bucket in relay.buckets:
            return
        others = [name for name, other in self.result.relays.items() if source.bucket in other.buckets]
        nearest = closest_match(source.bucket, relay.buckets)
        if others:
            advice = f"the relay {others[0]!r} does"
        elif nearest is not None:
            advice = f"did you mean {nearest!r}?"
        else:
            advice = f"add it to `buckets` in include/relays/{relay.relay}.yaml"
        text = f"the relay {relay.relay!r} does not watch the bucket {source.bucket!r}; {advice}"
        yield declaration.error_at(("source", "bucket"), text)

    def _weak_secrets(self, spec: Spec, path: Path) -> Iterator[SpecError]:
        try:
            check_secrets(spec, path, environment=self._name)
        except ConfigError as error:
            yield SpecError(path, 1, "", error.message)

    def _overrides(self, path: Path, kind: str, name: str) -> Overrides:
        if self._environment is None:
            return Overrides()
        try:
            return overrides_of(self._environment, self._file, kind, name)
        except ConfigError as error:
            self._add(SpecError(path, 1, "", error.message))
            return Overrides()

    def _read(self, path: Path, overrides: Overrides) -> Declaration | None:
        try:
            return read_declaration(path, overrides=overrides)
        except ConfigError as error:
            cause = error.__cause__
            if isinstance(cause, InvalidYamlError):
                self._add(SpecError(path, cause.line, "", cause.problem))
            else:
                self._add(SpecError(path, 1, "", NO_KEYS if error.condition == "SPEC_INVALID" else error.message))
            return None

    def _spec(self, model: type[SpecType], declaration: Declaration) -> SpecType | None:
        try:
            return model.model_validate(declaration.data)
        except ValidationError as error:
            self._add(*to_spec_errors(error, declaration, model))
            return None

    def _add(self, *errors: SpecError) -> None:
        self.result.errors += [self._with_relative_path(spec_error) for spec_error in errors]

    def _with_relative_path(self, spec_error: SpecError) -> SpecError:
        file = spec_error.file
        return replace(spec_error, file=file.relative_to(self._root) if file.is_relative_to(self._root) else file)


def _pipeline_warnings(spec: PipelineSpec, declaration: Declaration) -> Iterator[SpecError]:
    for index, lookup in enumerate(spec.enrich):
        if lookup.kind == "mmdb" and not _has_mmdb_extension():
            text = "maxminddb is installed without its C extension and ten times slower; install one of its wheels"
            yield declaration.error_at(("enrich", index, "kind"), text)
    yield from _lag_warnings(spec, declaration)
    gold = {table.name for table in spec.gold.tables}
    scheduled = [table for table in spec.gold.tables if spec.gold.lag_of(table.name) is None]
    local_inputs = {name for table in scheduled for name in table.reads if cross_pipeline_table(name) is None} - gold
    # A table that only reads gold of other pipelines is built after that gold.
    if local_inputs:
        after = "after gold of other pipelines that it reads, " if spec.gold.cross_pipeline_inputs else ""
        at_night = "at the end of maintenance, or " if spec.maintenance.schedule is not None else ""
        built = f"{at_night}by `deltaworks gold build {spec.pipeline}`, which {dag_id(spec.pipeline, 'gold')} runs too"
        yield declaration.error_at(
            ("gold",),
            f"{', '.join(sorted(table.name for table in scheduled))}: no lag is declared, so it is built only "
            f"{after}{built}; write lag: 15m below gold",
        )
    yield from _rule_warnings(spec, declaration)


def _rule_warnings(spec: PipelineSpec, declaration: Declaration) -> Iterator[SpecError]:
    """Yields a warning for each rule that tells later than it promises."""
    for index, rule in enumerate(spec.rules):
        delay = notice_delay(spec, rule)
        if rule.notify_within_seconds is not None and delay.total_seconds > rule.notify_within_seconds:
            yield declaration.error_at(
                ("rules", index, "notify_within_seconds"),
                f"{rule.name} tells up to {delay.total_seconds:g} s after an event, and promises "
                f"{rule.notify_within_seconds} s: {delay.describe()}; shorten a part, or promise as much",
            )


def _lag_warnings(spec: PipelineSpec, declaration: Declaration) -> Iterator[SpecError]:
    """Yields the tables that the stream is to build after each batch, though a build reads all rows of an input."""
    fast = {table.name for table in spec.gold.stream_refreshed_tables}
    for index, table in enumerate(spec.gold.tables):
        reads_all = table.refresh == "full" or any(table.affects_for_input(name) == "all" for name in table.reads)
        lag = spec.gold.lag_of(table.name)
        if table.name in fast and lag is not None and reads_all:
            inherited = "" if table.lag == lag else ", which it has from a table that reads it,"
            text = (
                f"{table.name} may not meet its lag of {describe_duration(lag)}{inherited} as each build reads all "
                f"rows; write at least {describe_duration(STREAM_LAG)}, or let changes affect single dates"
            )
            yield declaration.error_at(("gold", "tables", index), text)


def _has_mmdb_extension() -> bool:
    """Returns whether maxminddb has its C extension; otherwise it silently falls back to Python code."""
    try:
        return find_spec("maxminddb.extension") is not None
    except ModuleNotFoundError:
        return False
