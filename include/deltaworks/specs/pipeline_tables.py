"""Checks the tables of a pipeline against each other: unique names, existing inputs, and columns for mutations.

Includes live tables, the grain of gold tables, with which single hours are rebuilt, and the tables that models read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from deltaworks.specs.base import KeyPath, Problem, suggest_name
from deltaworks.specs.gold import (
    AffectsSpec,
    GoldTableSpec,
    ReferenceSpec,
    ViewSpec,
    cross_pipeline_table,
    find_cycle,
)
from deltaworks.specs.keyed import KEY_TYPES, column_problem
from deltaworks.specs.live import LATEST_COLUMNS, LiveTableSpec, sum_type
from deltaworks.specs.models import ModelSpec
from deltaworks.specs.mutation import ORG_COLUMN, REQUEST_COLUMNS
from deltaworks.specs.pipeline_sections import PipelineSections
from deltaworks.specs.table import RESERVED_TABLES, TableSpec
from deltaworks.specs.types import VARIANT

_DAY = timedelta(days=1)


def table_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields all conflicts between the tables of a pipeline, each with its key path."""
    yield from _duplicate_name_problems(pipeline)
    yield from _live_problems(pipeline)
    yield from _gold_problems(pipeline)
    yield from _reference_problems(pipeline)
    yield from _view_problems(pipeline)
    for index, table in enumerate(pipeline.tables):
        if table.duplicates is not None and not pipeline.event.id:
            yield (
                ("tables", index, "duplicates"),
                f"{table.name} flags duplicates, which requires event.id; declare it",
            )
    yield from _mutation_problems(pipeline)


def declared_tables(
    pipeline: PipelineSections,
) -> Iterator[tuple[KeyPath, TableSpec | LiveTableSpec | GoldTableSpec | ReferenceSpec | ViewSpec | ModelSpec]]:
    """Yields name and key path of every table that a pipeline declares: bronze, live, gold, reference and model tables,
    and views.
    """
    for index, table in enumerate(pipeline.tables):
        yield ("tables", index), table
    for index, live in enumerate(pipeline.live):
        yield ("live", index), live
    for index, gold in enumerate(pipeline.gold.tables):
        yield ("gold", "tables", index), gold
    for index, reference in enumerate(pipeline.references):
        yield ("references", index), reference
    for index, view in enumerate(pipeline.views):
        yield ("views", index), view
    for index, model in enumerate(pipeline.models):
        yield ("models", index), model


def _duplicate_name_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    first: dict[str, KeyPath] = {}
    for key_path, table in declared_tables(pipeline):
        if table.name in first:
            text = f"table {table.name} is declared twice in this pipeline; give one of them another name"
            yield (*key_path, "name"), text, ((*first[table.name], "name"),)
        elif table.name in RESERVED_TABLES and not isinstance(table, TableSpec):
            yield (*key_path, "name"), f"the name {table.name!r} is reserved; choose another"
        first.setdefault(table.name, key_path)
    for index, history in enumerate(pipeline.tables):
        keyed = history.keyed_table()
        if keyed is None:
            continue
        key_path = ("tables", index, "keyed")
        if keyed.name in first:
            text = f"table {keyed.name} is declared twice in this pipeline; rename the keyed table with `table`"
            yield key_path, text, (first[keyed.name],)
        elif keyed.name in RESERVED_TABLES:
            yield key_path, f"the name {keyed.name!r} is reserved; choose another with `table`"
        first.setdefault(keyed.name, key_path)


def _gold_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    partitions = _partition_columns(pipeline)
    types = {table.name: table.column_types() for table in pipeline.tables}
    types |= {table.name: dict(table.types) for table in pipeline.keyed_tables}
    for index, gold in enumerate(pipeline.gold.tables):
        for position, read in enumerate(gold.reads):
            key_path = ("gold", "tables", index, "reads", position)
            if cross_pipeline_table(read) is not None:
                continue
            if read not in partitions:
                yield key_path, f"{gold.name!r} reads unknown table {read!r}; {suggest_name(read, partitions)}"
                continue
            string_columns = [
                name for name in partitions[read] if read not in types or types[read].get(name) == "string"
            ]
            if gold.affects == "same" and gold.partition_by not in string_columns:
                yield (
                    key_path,
                    f"{gold.name!r} declares `affects: same`, but {read!r} is not partitioned by "
                    f"{gold.partition_by!r} of type string",
                )
        gold_problems = (
            *_affects_problems(pipeline, gold),
            *_grain_problems(pipeline, gold),
            *_freeze_problems(gold),
        )
        yield from ((("gold", "tables", index, *key_path), text) for key_path, text in gold_problems)
    cycle = find_cycle(pipeline.gold.tables)
    if cycle:
        key_paths = {gold.name: ("gold", "tables", index, "reads") for index, gold in enumerate(pipeline.gold.tables)}
        first, *others = sorted(key_paths[name] for name in {*cycle})
        yield first, f"gold tables form a cycle: {' reads '.join(cycle)}", tuple(others)


def _affects_problems(pipeline: PipelineSections, gold: GoldTableSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yields problems in `affects` and `checks.intervals` of a gold table."""
    intervals = gold.checks.intervals
    rebuilds_completely = gold.affects == "all" or (
        gold.affects == "same" and intervals is not None and gold.partition_by in intervals.by
    )
    if intervals is not None and not rebuilds_completely:
        yield (
            ("checks", "intervals"),
            f"intervals cannot be checked because {gold.name!r} is rebuilt in parts; declare `affects: all`, or "
            "`same` with its partition column in `by`",
        )
    if isinstance(gold.affects, str | AffectsSpec):
        return
    for name, affects in gold.affects.items():
        key_path: KeyPath = ("affects", name)
        if name not in gold.reads:
            yield key_path, f"{gold.name!r} does not read {name!r}; {suggest_name(name, gold.reads)}"
        elif affects == "onwards" and (missing := _missing_date(pipeline, name)):
            yield key_path, f"`onwards` needs the date of a change of {name!r}: {missing}"
        elif isinstance(affects, AffectsSpec) and name in {reference.name for reference in pipeline.references}:
            yield key_path, f"{name!r} is not partitioned by date: write `onwards` or `all`"
    for name in gold.reads:
        if name not in gold.affects:
            yield ("affects",), f"{name!r} is missing; write {name}: {{days: [0]}}, onwards or all"


def _missing_date(pipeline: PipelineSections, name: str) -> str:
    """Returns what to declare if the date of a change in an input cannot be determined; empty if it can."""
    tables = {gold.name: gold for gold in pipeline.gold.tables}
    references = {reference.name: reference for reference in pipeline.references}
    if name in {model.name for model in pipeline.models}:
        return ""
    if name in references:
        return "" if references[name].effective_date is not None else "declare `effective_date` of the reference"
    if name in tables:
        dated = tables[name].is_partitioned_by_date or tables[name].checks.intervals is not None
        return "" if dated else "declare `checks.intervals` of that table, or partition it by a date"
    dated = "event_date" in _partition_columns(pipeline).get(name, ())
    return "" if dated else "it is not partitioned by event_date"


def _reference_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    for index, reference in enumerate(pipeline.references):
        for key_path, text in (*_column_problems(reference), *_file_problems(reference)):
            yield ("references", index, *key_path), text
    if pipeline.references and not pipeline.gold.tables:
        yield ("references",), "gold builds load them, but no gold table is declared"


def _column_problems(reference: ReferenceSpec) -> Iterator[tuple[KeyPath, str]]:
    types = reference.column_types()
    if len(types) < len(reference.columns):
        yield ("columns",), f"a column of {reference.name!r} is declared twice"
    for position, name in enumerate(reference.key):
        if name not in types:
            yield ("key", position), f"{name!r} is not a column; {suggest_name(name, types)}"
    for position, column in enumerate(reference.columns):
        if "<" in column.type or column.type == "binary":
            yield ("columns", position, "type"), f"CSV does not support {column.type}; declare a primitive type"
    if reference.effective_date is not None and types.get(reference.effective_date) != "date":
        dates = [name for name, kind in types.items() if kind == "date"]
        yield (
            ("effective_date",),
            f"{reference.effective_date!r} is not a column of type date; "
            f"{suggest_name(reference.effective_date, dates)}",
        )


def _file_problems(reference: ReferenceSpec) -> Iterator[tuple[KeyPath, str]]:
    if (reference.file is None) == (reference.object is None):
        yield (), "give either file, a path in the pipeline's folder, or object, a key in the lake"
    for source, path in (("file", reference.file), ("object", reference.object)):
        if path is not None and (path.startswith("/") or "\\" in path or {*path.split("/")} & {"", ".", ".."}):
            yield (source,), f"{path!r} is not a path below its folder; write one without .."
    if reference.object is not None and reference.object.split("/")[0] in ("tables", "control", "models"):
        yield ("object",), "`tables`, `control` and `models` are reserved; use another folder of the lake"


def _view_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    tables = readable_by_views(pipeline)
    for index, view in enumerate(pipeline.views):
        for position, read in enumerate(view.reads):
            if read not in tables:
                key_path = ("views", index, "reads", position)
                yield key_path, f"{view.name!r} reads unknown table or view {read!r}; {suggest_name(read, tables)}"
    cycle = find_cycle(pipeline.views)
    if cycle:
        key_paths = {view.name: ("views", index, "reads") for index, view in enumerate(pipeline.views)}
        first, *others = sorted(key_paths[name] for name in {*cycle})
        yield first, f"views form a cycle: {' reads '.join(cycle)}", tuple(others)


def readable_by_views(pipeline: PipelineSections) -> list[str]:
    """Returns the names of tables and views that a view can read."""
    names = [declared.name for _, declared in declared_tables(pipeline)]
    names += [keyed.name for keyed in pipeline.keyed_tables] + [*pipeline.engine_tables]
    mutations = pipeline.mutations
    return names + ([] if mutations is None else [mutations.names, mutations.intervals])


def _partition_columns(pipeline: PipelineSections) -> Mapping[str, tuple[str, ...]]:
    """Returns the partition columns of each table that gold can read."""
    columns: dict[str, tuple[str, ...]] = {table.name: table.partition_by for table in pipeline.tables}
    if pipeline.mutations is not None:
        columns[pipeline.mutations.names] = (ORG_COLUMN,)
    columns |= {table.name: table.partition_by for table in pipeline.keyed_tables}
    columns |= {reference.name: () for reference in pipeline.references}
    columns |= {model.name: () for model in pipeline.models}
    return columns | {gold.name: (gold.partition_by,) for gold in pipeline.gold.tables}


def _mutation_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields conflicts between a pipeline's tables and its mutations."""
    for index, table in enumerate(pipeline.tables):
        for problem in _announced_problems(pipeline, table):
            yield ("tables", index, *problem[0]), problem[1]
        if table.mutable is not None and pipeline.mutations is None:
            yield ("tables", index, "mutable"), "declare `mutations`: without requests nothing changes a table"
    mutable = {table.name for table in pipeline.tables if table.mutable is not None}
    if pipeline.mutations is None:
        return
    if not mutable:
        yield ("mutations",), "no table declares `mutable`: there is nothing to apply requests to"
    yield from _requests_problems(pipeline, pipeline.mutations.requests)
    yield from _mutation_table_problems(pipeline)


def _announced_problems(pipeline: PipelineSections, table: TableSpec) -> Iterator[Problem]:
    if table.announces is None:
        return
    announced = {other.name: other for other in pipeline.tables if other.announces is None}
    if table.announces.table not in announced:
        advice = suggest_name(table.announces.table, announced)
        yield ("announces", "table"), f"there is no table {table.announces.table!r} to announce; {advice}"
        return
    data = announced[table.announces.table]
    types = data.column_types()
    key = table.announces.key
    if types.get(key) != "string":
        string_columns = [name for name, kind in types.items() if kind == "string"]
        yield (
            ("announces", "key"),
            f"{key!r} is not a string column of {data.name!r}; {suggest_name(key, string_columns)}",
        )
    for index, column in enumerate(table.columns):
        if types.get(column.name) != column.type:
            present = types.get(column.name)
            advice = suggest_name(column.name, types) if present is None else f"its type is {present}"
            yield (
                ("columns", index, "name"),
                f"{column.name!r} is copied from {data.name!r}, which has no such column of type {column.type}; "
                f"{advice}",
            )


def _requests_problems(pipeline: PipelineSections, name: str) -> Iterator[Problem]:
    tables = {table.name: table for table in pipeline.tables if table.announces is None}
    if name not in tables:
        yield ("mutations", "requests"), f"there is no table {name!r} in this pipeline; {suggest_name(name, tables)}"
        return
    requests = tables[name]
    if requests.mutable is not None:
        yield ("mutations", "requests"), f"{name!r} is mutable; the request table must not be"
    types = requests.column_types()
    missing = [f"{column} {kind}" for column, kind in REQUEST_COLUMNS.items() if types.get(column) != kind]
    if missing:
        yield ("mutations", "requests"), f"the request table {name!r} lacks columns: {', '.join(missing)}"


def _mutation_table_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields conflicts between declared names and the tables that mutations create."""
    mutations = pipeline.mutations
    if mutations is None:
        return
    announcing = [table.name for table in pipeline.tables if table.announces is not None]
    if mutations.notifications is not None and mutations.notifications not in announcing:
        yield (
            ("mutations", "notifications"),
            f"{mutations.notifications!r} is not a notification table; "
            f"{suggest_name(mutations.notifications, announcing)}",
        )
    used_names = ["quarantine", *(table.name for table in pipeline.tables), *(table.name for table in pipeline.live)]
    used_names += [table.name for table in pipeline.gold.tables] + [keyed.name for keyed in pipeline.keyed_tables]
    used_names += [reference.name for reference in pipeline.references] + [view.name for view in pipeline.views]
    for key in ("names", "intervals"):
        name = getattr(mutations, key)
        if name in used_names:
            yield ("mutations", key), f"{name!r} is declared as another table; mutations create this one"
        used_names.append(name)


def _live_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields problems of live tables: unknown inputs, and columns of the wrong type."""
    bronze = {table.name: table for table in pipeline.tables}
    for index, live in enumerate(pipeline.live):
        if live.reads not in bronze:
            yield (
                ("live", index, "reads"),
                f"{live.name!r} reads unknown table {live.reads!r}; {suggest_name(live.reads, bronze)}",
            )
            continue
        check = _latest_problems if live.kind == "latest" else _count_problems
        yield from ((("live", index, *key_path), text) for key_path, text in check(live, bronze[live.reads]))


def _count_problems(live: LiveTableSpec, bronze: TableSpec) -> Iterator[tuple[KeyPath, str]]:
    if bronze.evolve == "add_columns":
        yield (
            ("reads",),
            f"{live.name!r} reads {live.reads!r}, whose columns can change, which would fail a live table's "
            f"query; declare evolve: rescue for {live.reads!r}",
        )
    if bronze.mutable is not None:
        yield (
            ("reads",),
            f"{live.reads!r} is mutable: rows would change after they were counted; use a gold table",
        )
    types = bronze.column_types()
    for position, name in enumerate(live.group_by):
        if name not in types:
            text = (
                f"{live.name!r} groups by {name}, which is not a column of {live.reads!r}; {suggest_name(name, types)}"
            )
            yield ("group_by", position), text
        elif types[name] == VARIANT:
            yield ("group_by", position), f"{name} is a variant; declare a column for the field to group by"
    used_names = ["window_start", "window_end", "window_date", "events", "updated_at", *live.group_by]
    for key, names, problem_of in (("sum", live.sum, _sum_problem), ("distinct", live.distinct, _distinct_problem)):
        for position, name in enumerate(names):
            problem = problem_of(name, types)
            if problem is None and f"{name}_{key}" in used_names:
                problem = f"the table would have two columns {name}_{key}; name each column once"
            if problem is not None:
                yield (key, position), problem
            used_names.append(f"{name}_{key}")


def _sum_problem(name: str, types: Mapping[str, str]) -> str | None:
    if name not in types:
        return f"there is no column {name!r} in this table; {suggest_name(name, types)}"
    return f"{name!r} is {types[name]}; name a column of numbers" if sum_type(types[name]) is None else None


def _distinct_problem(name: str, types: Mapping[str, str]) -> str | None:
    return column_problem(name, types, KEY_TYPES, decimals=True)


def _latest_problems(live: LiveTableSpec, bronze: TableSpec) -> Iterator[tuple[KeyPath, str]]:
    if bronze.announces is not None:
        yield ("reads",), f"{live.reads!r} announces another table and has no event_time; read {bronze.announces.table}"
        return
    if bronze.mutable is not None:
        yield (
            ("reads",),
            f"{live.reads!r} is mutable: a live table would miss changes by requests; declare `keyed` for "
            f"{live.reads!r} instead",
        )
    types = bronze.column_types()
    for key, names, problem_of in (("key", live.key, _key_problem), ("keep", live.keep, _keep_problem)):
        for position, name in enumerate(names):
            problem = problem_of(name, types)
            if problem is None and name in (*names[:position], *(live.key if key == "keep" else ())):
                problem = f"{name!r} is named twice"
            if problem is not None:
                yield (key, position), problem


def _key_problem(name: str, types: Mapping[str, str]) -> str | None:
    if name in LATEST_COLUMNS:
        return f"{name!r} decides which row is newer; use other columns as key"
    return column_problem(name, types, KEY_TYPES, decimals=True)


def _keep_problem(name: str, types: Mapping[str, str]) -> str | None:
    if name not in types:
        return f"there is no column {name!r} in this table; {suggest_name(name, types)}"
    return f"{name!r} is always included; remove it" if name in LATEST_COLUMNS else None


def _freeze_problems(gold: GoldTableSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yields problems with `frozen_after`. Key paths start at the table."""
    if gold.frozen_after is None:
        return
    if gold.frozen_after < _DAY:
        yield ("frozen_after",), "dates are frozen, so the shortest duration is 1d"
    if any(not isinstance(gold.affects_for_input(name), AffectsSpec) for name in gold.reads):
        text = "only dates can be frozen, but `affects` says all, same or onwards; remove one of the two"
        yield ("frozen_after",), text
    if gold.refresh == "full":
        yield ("frozen_after",), "`refresh: full` computes all dates whenever an input changes; remove one of the two"


def _grain_problems(pipeline: PipelineSections, gold: GoldTableSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yields problems with a gold table's grain, or with `affects` in hours without a grain. Key paths start at the
    table.
    """
    if gold.grain is None:
        yield from _hours_without_grain(gold)
        return
    if gold.grain.column == gold.partition_by:
        yield (
            ("grain", "column"),
            f"{gold.grain.column!r} is the partition date of {gold.name!r}; use a timestamp within that date",
        )
    if isinstance(gold.affects, str):
        yield (
            ("affects",),
            f"`affects: {gold.affects}` does not rebuild by hours; remove `grain`, or write hours: [0]",
        )
        return
    yield from _mixed_units(gold)
    if isinstance(gold.affects, AffectsSpec) and not gold.affects.hours:
        yield ("affects",), "complete dates would be rebuilt despite `grain`; write hours: [0], or remove `grain`"
    events = {table.name for table in pipeline.event_tables}
    dedupe = pipeline.gold.dedupe
    if dedupe is not None and dedupe.within_hours is None and events & {*gold.reads}:
        yield (
            ("grain",),
            "duplicates that are dates apart would rebuild complete dates; declare gold.dedupe.within_hours, such as 1",
        )


def _hours_without_grain(gold: GoldTableSpec) -> Iterator[tuple[KeyPath, str]]:
    for key_path, affects in _affects_specs(gold):
        if affects.hours:
            yield (*key_path, "hours"), f"{gold.name!r} is rebuilt by dates; write days: [0], or declare `grain`"


def _mixed_units(gold: GoldTableSpec) -> Iterator[tuple[KeyPath, str]]:
    for key_path, affects in _affects_specs(gold):
        if affects.hours and affects.days != AffectsSpec().days:
            yield (*key_path, "days"), "a change affects either hours or days; write days as hours: [-24]"


def _affects_specs(gold: GoldTableSpec) -> Iterator[tuple[KeyPath, AffectsSpec]]:
    if isinstance(gold.affects, AffectsSpec):
        yield ("affects",), gold.affects
    elif not isinstance(gold.affects, str):
        yield from ((("affects", name), one) for name, one in gold.affects.items() if isinstance(one, AffectsSpec))


def model_problems(pipeline: PipelineSections) -> Iterator[Problem]:
    """Yields conflicts between models and gold tables, each with its key path."""
    gold = {table.name: table for table in pipeline.gold.tables}
    for index, model in enumerate(pipeline.models):
        for key_path, text in (*_model_table_problems(model, gold), *_warning_problems(model, gold)):
            yield ("models", index, *key_path), text
    models = {model.name: model for model in pipeline.models}
    for index, table in enumerate(pipeline.gold.tables):
        for key_path, text in _reader_problems(table, models):
            yield ("gold", "tables", index, *key_path), text


def _model_table_problems(model: ModelSpec, gold: Mapping[str, GoldTableSpec]) -> Iterator[tuple[KeyPath, str]]:
    if model.features not in gold:
        yield (
            ("features",),
            (f"{model.features!r} is not a gold table of this pipeline; {suggest_name(model.features, gold)}"),
        )
    for position, name in enumerate(model.reads):
        if cross_pipeline_table(name) is None and name not in gold:
            yield ("reads", position), (f"{model.name!r} reads unknown gold table {name!r}; {suggest_name(name, gold)}")
        elif name in gold and model.name in gold[name].reads:
            yield ("reads", position), f"{name!r} depends on the scores of {model.name!r} and cannot be its label"
    if model.features in gold and model.name in gold[model.features].reads:
        yield ("features",), f"{model.features!r} depends on the scores of {model.name!r} and cannot be its features"


def _warning_problems(model: ModelSpec, gold: Mapping[str, GoldTableSpec]) -> Iterator[tuple[KeyPath, str]]:
    if model.warnings is None:
        return
    scores = [table.name for table in gold.values() if model.name in table.reads]
    if model.warnings not in scores:
        text = (
            f"{model.warnings!r} is not a gold table that reads {model.name!r}; {suggest_name(model.warnings, scores)}"
        )
        yield ("warnings",), text


def _reader_problems(table: GoldTableSpec, models: Mapping[str, ModelSpec]) -> Iterator[tuple[KeyPath, str]]:
    """Yields problems of a gold table that reads a model."""
    for position, name in enumerate(table.reads):
        model = models.get(name)
        if model is None:
            continue
        key_path: KeyPath = ("reads", position)
        if model.features not in table.reads:
            text = f"{name!r} scores the rows of {model.features!r}: write reads: [{model.features}, {name}]"
            yield key_path, text
        if table.affects == "same":
            yield ("affects",), f"a new model of {name!r} applies from a date: write {name}: onwards"
        elif isinstance(table.affects, Mapping) and isinstance(table.affects.get(name), AffectsSpec):
            yield ("affects", name), f"a new model applies from a date: write {name}: onwards"
