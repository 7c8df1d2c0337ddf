"""Builds the training rows of a model: features joined with labels, at pinned table versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from deltaworks.control import paths
from deltaworks.errors import ConfigError, ContractError
from deltaworks.models.alarms import Floats
from deltaworks.models.baselines import LabelledRows
from deltaworks.models.fitting import HOLDS, LABEL, LAST_AT, NEXT_AT, label_query
from deltaworks.models.spans import AT, RowSelection
from deltaworks.specs.gold import cross_pipeline_table, view_name
from deltaworks.specs.models import instant_sql
from deltaworks.tables.versions import Versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltaworks.models.fitting import FittedModel
    from deltaworks.specs.models import ModelSpec
    from deltaworks.tables.lake import Lake

_FEATURES, _STATES = "_model_features", "_model_states"
#: Column with a hash of the entity.
_ENTITY_COLUMN: Final = "_entity"
#: Rows per partition. Sums are reproducible with few partitions in a fixed order.
_ROWS_PER_PARTITION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LabelledFrame:
    """A DataFrame of labelled feature rows in a fixed order, and the time until which states are known."""

    frame: DataFrame
    columns: tuple[str, ...]
    known_until: int

    def filter_rows(self, rows: RowSelection) -> DataFrame:
        """Returns a selection of the rows."""
        return self.frame.where(rows.condition)

    def collect_labelled(
        self, rows: RowSelection, scores: Mapping[str, FittedModel] | None = None
    ) -> tuple[LabelledRows, dict[str, Floats]]:
        """Collects a selection of rows without features, and the model scores, ordered by entity and time."""
        frame = self.filter_rows(rows)
        names = {f"_score_{index}": name for index, name in enumerate(scores or {})}
        for column, name in names.items():
            frame = (scores or {})[name].with_score(frame, column)
        table: Any = frame.select(_ENTITY_COLUMN, AT, LABEL, NEXT_AT, LAST_AT, *names).toArrow()
        order = np.lexsort((_column_values(table, AT), _column_values(table, _ENTITY_COLUMN)))
        labelled = LabelledRows(
            _column_values(table, _ENTITY_COLUMN)[order].astype(np.int64),
            _column_values(table, AT)[order].astype(np.int64),
            _column_values(table, LABEL)[order].astype(np.bool_),
            _column_values(table, NEXT_AT)[order].astype(np.float64),
            _column_values(table, LAST_AT)[order].astype(np.float64),
        )
        return labelled, {
            name: _column_values(table, column)[order].astype(np.float64) for column, name in names.items()
        }


def _column_values(table: Any, column: str) -> Any:
    return table.column(column).to_numpy()


def pinned_versions(lake: Lake, pipeline: str, model: ModelSpec) -> dict[str, int]:
    """Returns the current versions of a model's tables.

    Raises:
        ContractError: MODEL_INPUT_MISSING, a table does not exist.
    """
    versions = {}
    for name in dict.fromkeys((model.features, *model.reads)):
        table = lake.open(_table_key(pipeline, name))
        if table is None:
            raise ContractError(
                "MODEL_INPUT_MISSING",
                f"Model {model.name!r} reads {name!r}, which is not built yet.",
                hint=f"Build it: `deltaworks gold build {(cross_pipeline_table(name) or (pipeline,))[0]}`.",
            )
        versions[name] = table.version()
    return versions


def _table_key(pipeline: str, name: str) -> str:
    return paths.table(*(cross_pipeline_table(name) or (pipeline, name)))


def build_labelled_frame(
    spark: SparkSession,
    lake: Lake,
    pipeline: str,
    model: ModelSpec,
    *,
    versions: Mapping[str, int],
    label_sql: str,
    until: int,
) -> LabelledFrame:
    """Builds the labelled rows of a model as of a time. They are cached until `frame.unpersist()`.

    Args:
        versions: table versions, read by time travel.
        until: later rows and states are ignored, as in a training at that time.

    Raises:
        ConfigError: MODEL_SQL_INVALID or MODEL_COLUMN_MISSING.
        ContractError: TABLE_VERSION_UNAVAILABLE.
    """
    views = {
        name: _read_version(spark, lake, _table_key(pipeline, name), version) for name, version in versions.items()
    }
    features = _with_instant(views[model.features], model.timestamp, model, source=f"the gold table {model.features}")
    missing = [name for name in (*model.entity, *model.columns) if name not in features.columns]
    if missing:
        raise _missing_columns_error(f"the gold table {model.features}", missing, "feature_groups")
    features = features.where(f"{AT} <= {until}").select(*model.entity, AT, *model.columns)
    features.createOrReplaceTempView(_FEATURES)
    states = _state_rows(spark, {view_name(name): views[name] for name in model.reads}, label_sql, model)
    states = states.where(f"{AT} <= {until}")
    states.createOrReplaceTempView(_STATES)
    newest = states.selectExpr(f"max({AT})").first()
    sql = label_query(
        rows=_FEATURES,
        states=_STATES,
        entity=model.entity,
        columns=model.columns,
        predicts=model.predicts,
        horizon_seconds=model.horizon_seconds,
    )
    known_until = 0 if newest is None or newest[0] is None else int(newest[0])
    return LabelledFrame(_order_rows(spark.sql(sql), model), model.columns, known_until)


def _order_rows(rows: DataFrame, model: ModelSpec) -> DataFrame:
    from pyspark.sql import functions as F

    name = F.concat_ws("\x1f", *(F.coalesce(F.col(column).cast("string"), F.lit("\x00")) for column in model.entity))
    # The shift leaves room for multiplying the hash by 168 hours.
    rows = rows.withColumn(_ENTITY_COLUMN, F.shiftrightunsigned(F.xxhash64(name), 12)).persist()
    parts = 1 + rows.count() // _ROWS_PER_PARTITION
    # A single partition gives deterministic results. With several, at least their number is fixed.
    ordered = rows.repartition(parts, _ENTITY_COLUMN).sortWithinPartitions(_ENTITY_COLUMN, AT, *model.columns).persist()
    ordered.count()
    rows.unpersist()
    return ordered


def _read_version(spark: SparkSession, lake: Lake, key: str, version: int) -> DataFrame:
    # Raises with the available versions if this one cannot be read.
    Versions(lake, key, name=key).open(version)
    return spark.read.format("delta").option("versionAsOf", version).load(lake.storage.spark_uri(key))


def _state_rows(spark: SparkSession, views: Mapping[str, DataFrame], label_sql: str, model: ModelSpec) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException

    for name, view in views.items():
        view.createOrReplaceTempView(name)
    try:
        answer = spark.sql(label_sql)
        columns = answer.columns
    except (AnalysisException, ParseException) as error:
        raise ConfigError(
            "MODEL_SQL_INVALID",
            f"The label of {model.name!r}, {model.label}, does not run: {str(error).splitlines()[0]}",
        ) from error
    missing = [name for name in (*model.entity, HOLDS) if name not in columns]
    if missing:
        raise _missing_columns_error(model.label, missing, "label")
    dated = _with_instant(answer, model.timestamp, model, source=model.label)
    return dated.selectExpr(*model.entity, AT, f"CAST({HOLDS} AS BOOLEAN) AS {HOLDS}")


def _with_instant(rows: DataFrame, at: str, model: ModelSpec, *, source: str) -> DataFrame:
    """Adds the row time in Unix seconds; for a date, its end."""
    if at not in rows.columns:
        raise _missing_columns_error(source, [at], "timestamp")
    kind = rows.schema[at].dataType.typeName()
    seconds = instant_sql(at, kind)
    if seconds is None:
        raise ConfigError(
            "MODEL_COLUMN_MISSING",
            f"{at!r} of {source} has type {kind}, not timestamp or date, as model {model.name!r} needs.",
            hint="Cast it to timestamp or date.",
        )
    return rows.where(f"{at} IS NOT NULL").selectExpr("*", f"{seconds} AS {AT}")


def _missing_columns_error(source: str, missing: Sequence[str], key: str) -> ConfigError:
    return ConfigError(
        "MODEL_COLUMN_MISSING",
        f"{source} has no column {', '.join(missing)}.",
        hint=f"Add it to the SQL, or correct `{key}` of the model.",
    )
