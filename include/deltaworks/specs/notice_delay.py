"""The time from an event to the notice of a rule, as declared: the delay of its tables, and how it is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.gold import names_read
from deltaworks.specs.pipeline_sections import PipelineSections

#: Interval in which the rule process checks which minutes are complete.
EVALUATION_INTERVAL_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeDelay:
    """The longest time from the first bad event to a rule's notice while nothing fails. All times are in seconds.

    The first bad event can be in a step with too few bad events to fire: then the rule fires after
    this step and those of `for_minutes`. A step is evaluated when it has settled and rows of a later step are
    committed. Steps with too few samples are combined and take up to fifteen times as long.

    Args:
        table: the table with the longest delay.
        table_seconds: the time until a row is in that table.
        settle_seconds: the rule's `evaluation_delay_seconds`.
        is_by_arrival: steps are times of arrival, which begin when a row is read.
    """

    table: str
    table_seconds: float
    step_seconds: float
    for_seconds: float
    settle_seconds: float
    is_by_arrival: bool

    @property
    def total_seconds(self) -> float:
        """The sum of all parts. An event-time step settles while its rows arrive."""
        waiting = (
            self.table_seconds + self.settle_seconds
            if self.is_by_arrival
            else max(self.table_seconds, self.settle_seconds)
        )
        return self.step_seconds + self.for_seconds + waiting + EVALUATION_INTERVAL_SECONDS

    def describe(self) -> str:
        """Lists the parts, for example `step 60 + for 60 + settle 55 (player_events 30) + evaluation 3`."""
        table = f"{self.table} {self.table_seconds:g}"
        settle = (
            f"{table} + settle {self.settle_seconds:g}"
            if self.is_by_arrival
            else f"settle {max(self.table_seconds, self.settle_seconds):g} ({table})"
        )
        return (
            f"step {self.step_seconds:g} + for {self.for_seconds:g} + {settle} + "
            f"evaluation {EVALUATION_INTERVAL_SECONDS:g}"
        )


def notice_delay(pipeline: PipelineSections, rule: RuleSpec) -> NoticeDelay:
    """Returns the declared time from an event to the notice of a rule."""
    table = slowest_table(pipeline, rule) or rule.reads[0]
    return NoticeDelay(
        table=table,
        table_seconds=table_delay_seconds(pipeline, table),
        step_seconds=60 * rule.step_minutes,
        for_seconds=60 * rule.for_steps * rule.step_minutes,
        settle_seconds=rule.evaluation_delay_seconds,
        is_by_arrival=rule.time_axis == "arrival",
    )


def slowest_table(pipeline: PipelineSections, rule: RuleSpec) -> str | None:
    """Returns the table with the longest delay among those that a rule's minutes come from, directly or through views.

    Only landed rows have a time of arrival: what else a rule by arrival reads is looked up.
    """
    tables = sorted(rule_tables(pipeline, rule))
    if rule.time_axis == "arrival":
        landed = {table.name for table in pipeline.tables}
        tables = [name for name in tables if name in landed]
    return max(tables, key=lambda name: table_delay_seconds(pipeline, name), default=None)


def rule_tables(pipeline: PipelineSections, rule: RuleSpec) -> set[str]:
    """Returns the tables that a rule reads, directly or through views."""
    views = {view.name: view.reads for view in pipeline.views}
    return {*names_read(views, rule.reads)} - views.keys()


def table_delay_seconds(pipeline: PipelineSections, table: str) -> float:
    """Returns how long a row that can be read from the source may take into a table; 0 if unknown.

    Gold and live tables that the stream updates follow its batches.
    """
    trigger = pipeline.stream.trigger_seconds
    for gold in pipeline.gold.tables:
        if gold.name == table:
            lag = pipeline.gold.lag_of(table)
            if lag is None:
                return 0
            return lag.total_seconds() + (trigger if gold in pipeline.gold.stream_refreshed_tables else 0)
    for live in pipeline.live:
        if live.name == table:
            return trigger + live.trigger_seconds
    landed = any(table == bronze.name for bronze in pipeline.tables)
    keyed = any(table == other.name for other in pipeline.keyed_tables)
    return trigger if landed or keyed else 0
