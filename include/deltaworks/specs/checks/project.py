"""Everything that is wrong with the declarations of a project: all pipelines, all mistakes, in one reading.

What a stream refuses to start with is among it, and what would fail only later, in a build or a schedule.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Place, Spec, nearest_of
from deltaworks.specs.catalog import project_root
from deltaworks.specs.checks.cluster_sums import cluster_warnings
from deltaworks.specs.checks.every_mistake import WholeReading, whole_reading
from deltaworks.specs.checks.gold_sql import gold_sql_mistakes
from deltaworks.specs.checks.paths_of_events import path_mistakes
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.collector_file import collector_files, collector_problems
from deltaworks.specs.declared_mistakes import Declared, mistakes_of
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.gold import place_in_other
from deltaworks.specs.known_secrets import LOCAL, check_secrets
from deltaworks.specs.loading import NO_KEYS, read_declared
from deltaworks.specs.mistakes import Mistake, meant
from deltaworks.specs.overrides import Overrides, aimless_overrides, overrides_of
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import pipeline_files, selected_pipelines
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.shares import ClusterShares
from deltaworks.specs.sources.delta import DeltaSourceSpec
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.surroundings import surrounding_mistakes
from deltaworks.specs.yaml_problems import UnreadableYaml

SpecType = TypeVar("SpecType", bound=Spec)


@dataclass(slots=True)
class ProjectCheck:
    """What is wrong with a project, what is remarkable, and the pipelines and relays that are right.

    A remark stops nothing. Files are below the project's folder.
    """

    mistakes: list[Mistake] = field(default_factory=list)
    remarks: list[Mistake] = field(default_factory=list)
    pipelines: dict[str, PipelineSpec] = field(default_factory=dict)
    relays: dict[str, RelaySpec] = field(default_factory=dict)


def check_project(environment: str | None = None, *, root: Path | None = None) -> ProjectCheck:
    """Look through all declarations. Reads files alone, and ends at no mistake.

    Raises:
        ConfigError: SPEC_MISSING, there is no such environment; PIPELINE_UNKNOWN, DELTAWORKS_PIPELINES names one that
            is not there.
    """
    checker = _Checker(root or project_root(), environment or os.environ.get("DELTAWORKS_ENVIRONMENT", LOCAL))
    checker.check_environment()
    checker.check_relays()
    checker.check_pipelines()
    checker.check_collectors()
    checker.check_overrides()
    checker.check_cluster()
    return checker.result


class _Checker:
    """One reading of a project, kind by kind."""

    def __init__(self, root: Path, environment: str) -> None:
        self.result = ProjectCheck()
        self._root = root
        self._name = environment
        self._file = root / "include" / "environments" / f"{environment}.yaml"
        self._environment: EnvironmentSpec | None = None
        self._relay_files = {path.stem: path for path in sorted((root / "include" / "relays").glob("*.yaml"))}
        self._pipeline_files = pipeline_files(root)

    def check_environment(self) -> None:
        """Read the environment; without one that is right its overrides are left out."""
        if not self._file.is_file():
            read_declared(self._file)  # raises
        declared = self._declared(self._file, Overrides())
        self._environment = self._spec(EnvironmentSpec, declared) if declared is not None else None
        if self._environment is not None:
            self._add(*self._weak_secrets(self._environment, self._file))

    def check_relays(self) -> None:
        """Read every relay."""
        for name, path in self._relay_files.items():
            declared = self._declared(path, self._overrides(path, "relays", name))
            spec = self._spec(RelaySpec, declared) if declared is not None else None
            if spec is None or declared is None:
                continue
            if spec.relay != name:
                text = f"the file is called {path.name}, the relay {spec.relay!r}: give both the same name"
                self._add(declared.mistake(("relay",), text))
            self.result.relays[name] = spec

    def check_pipelines(self) -> None:
        """Read every pipeline, to its last mistake."""
        for path in selected_pipelines(self._pipeline_files):
            name = path.parent.name
            declared = self._declared(path, self._overrides(path, "pipelines", name))
            if declared is None:
                continue
            reading = whole_reading(declared, self._surroundings)
            spec = reading.spec
            mistakes = list(reading.mistakes)
            if spec is not None:
                mistakes += [*_gold_mistakes(reading, spec), *self._weak_secrets(spec, path)]
            self._add(*sorted(dict.fromkeys(mistakes), key=lambda item: (item.file != path, item.file, item.line)))
            if mistakes or spec is None:
                continue
            if not isinstance(spec.source, FileSourceSpec) or spec.source.relay in self.result.relays:
                self.result.pipelines[name] = spec
                self.result.remarks += [self._shown(remark) for remark in _remarks(spec, declared)]

    def check_collectors(self) -> None:
        """Read every collector."""
        for path in collector_files(self._root).values():
            declared = self._declared(path, Overrides())
            spec = self._spec(CollectorSpec, declared) if declared is not None else None
            if spec is not None and declared is not None:
                problems = collector_problems(spec, path, self._pipeline_files)
                self._add(*(declared.mistake(*problem[:2]) for problem in problems))

    def check_overrides(self) -> None:
        """Overrides of what is not declared: a mistake where it looks like a slip, else a remark."""
        if self._environment is None:
            return
        declared = {"relays": set(self._relay_files), "pipelines": set(self._pipeline_files)}
        file = read_declared(self._file)
        for aimless in aimless_overrides(self._environment, declared):
            mistake = file.mistake(aimless.place, aimless.text)
            if aimless.variable is not None:
                mistake = Mistake(self._file, 1, aimless.variable, aimless.text)
            (self.result.mistakes if aimless.slip else self.result.remarks).append(self._shown(mistake))

    def check_cluster(self) -> None:
        """Whether the cluster holds what runs on it: a remark where jobs would wait."""
        if self._environment is None:
            return
        for place, text in cluster_warnings(self._environment, list(self.result.pipelines.values())):
            self.result.remarks.append(self._shown(read_declared(self._file).mistake(place, text)))

    def _surroundings(self, spec: PipelineSpec, declared: Declared) -> Iterator[tuple[Place, Mistake]]:
        """What a pipeline does not agree with; the mistakes of a relay itself are listed already."""
        declared_here = self._environment
        yield from surrounding_mistakes(
            spec,
            declared,
            relays=self._relay_files,
            wrong_relays={},
            shares=declared_here.shares if declared_here is not None else ClusterShares.defaults(),
            groups=declared_here.stream_groups if declared_here is not None else (),
            channels=declared_here.alerts.kinds if declared_here is not None else None,
        )
        yield from path_mistakes(spec, declared)
        yield from self._source_mistakes(spec, declared)

    def _source_mistakes(self, spec: PipelineSpec, declared: Declared) -> Iterator[tuple[Place, Mistake]]:
        source = spec.source
        if isinstance(source, DeltaSourceSpec) and source.pipeline is not None:
            place: Place = ("source", "pipeline")
            if source.pipeline not in self._pipeline_files:
                text = f"there is no pipeline {source.pipeline!r}; {nearest_of(source.pipeline, self._pipeline_files)}"
                yield place, declared.mistake(place, text)
        relay = self.result.relays.get(source.relay) if isinstance(source, FileSourceSpec) else None
        if relay is None or not isinstance(source, FileSourceSpec) or source.bucket in relay.buckets:
            return
        others = [name for name, other in self.result.relays.items() if source.bucket in other.buckets]
        nearest = meant(source.bucket, relay.buckets)
        if others:
            advice = f"the relay {others[0]!r} does"
        elif nearest is not None:
            advice = f"did you mean {nearest!r}?"
        else:
            advice = f"add it to `buckets` in include/relays/{relay.relay}.yaml"
        yield (
            ("source", "bucket"),
            declared.mistake(
                ("source", "bucket"), f"the relay {relay.relay!r} does not watch the bucket {source.bucket!r}; {advice}"
            ),
        )

    def _weak_secrets(self, spec: Spec, path: Path) -> Iterator[Mistake]:
        try:
            check_secrets(spec, path, environment=self._name)
        except ConfigError as error:
            yield Mistake(path, 1, "", error.message)

    def _overrides(self, path: Path, kind: str, name: str) -> Overrides:
        if self._environment is None:
            return Overrides()
        try:
            return overrides_of(self._environment, self._file, kind, name)
        except ConfigError as error:
            self._add(Mistake(path, 1, "", error.message))
            return Overrides()

    def _declared(self, path: Path, overrides: Overrides) -> Declared | None:
        try:
            return read_declared(path, overrides=overrides)
        except ConfigError as error:
            cause = error.__cause__
            if isinstance(cause, UnreadableYaml):
                self._add(Mistake(path, cause.line, "", cause.problem))
            else:
                self._add(Mistake(path, 1, "", NO_KEYS if error.condition == "SPEC_INVALID" else error.message))
            return None

    def _spec(self, model: type[SpecType], declared: Declared) -> SpecType | None:
        try:
            return model.model_validate(declared.data)
        except ValidationError as error:
            self._add(*(mistake for _, mistake in mistakes_of(error, declared, model)))
            return None

    def _add(self, *mistakes: Mistake) -> None:
        self.result.mistakes += [self._shown(mistake) for mistake in mistakes]

    def _shown(self, mistake: Mistake) -> Mistake:
        file = mistake.file
        return replace(mistake, file=file.relative_to(self._root) if file.is_relative_to(self._root) else file)


def _gold_mistakes(reading: WholeReading, spec: PipelineSpec) -> Iterable[Mistake]:
    """What is wrong with the SQL of gold tables, views, panels and rules, those left out that were put aside."""
    if not (spec.gold.tables or spec.views or spec.dashboards or spec.alerts):
        return []
    unknown = {table.name for index, table in enumerate(spec.tables) if reading.is_aside(("tables", index))}
    skip = {
        table.name
        for index, table in enumerate(spec.gold.tables)
        if reading.is_aside(("gold", "tables", index)) or reading.is_aside(("gold", "tables", index, "sql"))
    }
    return gold_sql_mistakes(spec, reading.declared, unknown=unknown, skip=skip)


def _remarks(spec: PipelineSpec, declared: Declared) -> Iterator[Mistake]:
    for index, look_up in enumerate(spec.enrich):
        if look_up.kind == "mmdb" and not _has_fast_reader():
            text = "maxminddb has no C extension here: its Python code is ten times slower; install one of its wheels"
            yield declared.mistake(("enrich", index, "kind"), text)
    gold = {table.name for table in spec.gold.tables}
    waiting = [table for table in spec.gold.tables if table.refresh_seconds is None]
    own = {name for table in waiting for name in table.reads if place_in_other(name) is None} - gold
    # What reads only gold of others is built after it, and what the stream refreshes by the stream.
    if own and spec.gold.schedule is None:
        after = "after gold of other pipelines that it reads, " if spec.gold.of_others else ""
        at_night = "at the end of maintenance, or " if spec.maintenance.schedule is not None else ""
        built = f"{at_night}by `deltaworks gold build {spec.pipeline}`, which gold__{spec.pipeline} runs too"
        yield declared.mistake(
            ("gold",),
            f'gold has no schedule and is built only {after}{built}; write schedule: "*/15 * * * *" below gold',
        )


def _has_fast_reader() -> bool:
    """Whether maxminddb can be read by its C extension; it falls back to Python code without a word."""
    try:
        return find_spec("maxminddb.extension") is not None
    except ModuleNotFoundError:
        return False
