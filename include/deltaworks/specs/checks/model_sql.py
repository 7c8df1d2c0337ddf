"""SQL of models' labels as declared, and the columns that models take of it and of their features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deltaworks.specs.base import Place
from deltaworks.specs.checks.sound_queries import Columns, SoundQueries
from deltaworks.specs.checks.sql_files import read_sql_file
from deltaworks.specs.declared_mistakes import Declared
from deltaworks.specs.gold import view_name
from deltaworks.specs.mistakes import Mistake, meant
from deltaworks.specs.models import ModelSpec
from deltaworks.specs.pipeline import PipelineSpec

_HOLDS = "holds"


def model_mistakes(
    spec: PipelineSpec, declared: Declared, columns: Mapping[str, Columns], sound: SoundQueries
) -> Iterator[Mistake]:
    """Everything that is wrong with the SQL of labels, and with the columns that models name.

    Args:
        columns: of the tables of the pipeline; those it lacks may have any.
    """
    gold = {table.name for table in spec.gold.tables}
    for index, model in enumerate(spec.models):
        answer: Columns = None
        path = declared.path.parent / model.label
        if path.is_file():
            tables = {view_name(name): columns.get(name) if name in gold else None for name in model.reads}
            answer, mistakes = read_sql_file(path, tables, spec, sound, purpose="gold")
            yield from mistakes
        for place, text in (*_feature_problems(model, columns.get(model.features)), *_label_problems(model, answer)):
            yield declared.mistake(("models", index, *place), text)


def _feature_problems(model: ModelSpec, columns: Columns) -> Iterator[tuple[Place, str]]:
    if columns is None:
        return
    places: list[tuple[Place, str]] = [(("at",), model.at), *_entity_places(model)]
    places += [
        (("groups", group, index), name) for group, names in model.groups.items() for index, name in enumerate(names)
    ]
    for place, name in places:
        if name not in columns:
            nearest = meant(name, columns)
            advice = f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(columns)}"
            yield place, f"the gold table {model.features!r} has no column {name!r}; {advice}"


def _label_problems(model: ModelSpec, answer: Columns) -> Iterator[tuple[Place, str]]:
    if answer is None:
        return
    for name in (*model.of, model.at, _HOLDS):
        if name not in answer:
            nearest = meant(name, answer)
            advice = f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(answer)}"
            yield ("label",), f"the answer of {model.label} has no column {name!r}; {advice}"


def _entity_places(model: ModelSpec) -> list[tuple[Place, str]]:
    if len(model.of) == 1:
        return [(("of",), model.of[0])]
    return [(("of", index), name) for index, name in enumerate(model.of)]
