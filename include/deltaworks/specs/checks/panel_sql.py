"""SQL of panels as declared: whether DuckDB could read it, whether it is bounded, and whether the tables and columns it
and its panel name are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from deltaworks.specs.base import Place
from deltaworks.specs.checks.sound_queries import Columns, SoundQueries
from deltaworks.specs.checks.sql_files import read_sql_file
from deltaworks.specs.dashboards import PanelSpec
from deltaworks.specs.declared_mistakes import Declared
from deltaworks.specs.mistakes import Mistake, meant
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.pipeline_tables import readable_by_views


def panel_mistakes(
    spec: PipelineSpec, declared: Declared, columns: Mapping[str, Columns], sound: SoundQueries
) -> Iterator[Mistake]:
    """Everything that is wrong with the SQL of panels, and with the columns that panels name.

    Args:
        columns: of the tables and views of the pipeline; those it lacks may have any.
    """
    tables = {name: columns.get(name) for name in readable_by_views(spec)}
    for index, dashboard in enumerate(spec.dashboards):
        for number, panel in enumerate(dashboard.panels):
            path = declared.path.parent / panel.sql
            if not path.is_file():
                continue
            answer, mistakes = read_sql_file(path, tables, spec, sound, purpose="panel")
            yield from mistakes
            if answer is not None and not mistakes:
                for place, text in _column_problems(panel, answer):
                    yield declared.mistake(("dashboards", index, "panels", number, *place), text)


def _column_problems(panel: PanelSpec, answer: Sequence[str]) -> Iterator[tuple[Place, str]]:
    """Columns that a panel names and its answer lacks."""
    for place, name in panel.columns():
        if name not in answer:
            nearest = meant(name, answer)
            advice = f"did you mean {nearest!r}?" if nearest is not None else f"its columns are {', '.join(answer)}"
            yield place, f"the answer of {panel.sql} has no column {name!r}; {advice}"
