"""Specs of rules on query results: the evaluated value, its bounds and baseline, and when alerts are raised."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from deltaworks.errors import Severity
from deltaworks.specs.base import KeyPath, Name, Problem, Spec, as_tuple, raise_problems, suggest_name

#: Maximum number of label sets in one minute. More are the error RULE_TOO_MANY_SERIES.
MAX_LABEL_SETS: Final = 1_000
#: Aggregation windows in minutes. If a window has too few samples, the next longer one is tried.
AGGREGATION_MINUTES: Final = (1, 5, 15)
#: Result columns of a rule that are not labels.
MINUTE, VALUE, SAMPLES, BUCKET = "minute", "value", "samples", "bucket"
Names = Annotated[tuple[Name, ...], BeforeValidator(as_tuple)]

_UPWARDS: Final = ("above", "above_baseline", "min_increase")
_DOWNWARDS: Final = ("below", "below_baseline", "min_decrease")
_RELATIVE: Final = ("above_baseline", "below_baseline", "deviations", "min_increase", "min_decrease")


class BoundsSpec(Spec):
    """Bounds of a value in one direction. All given bounds must be crossed.

    `above_baseline: 1.1` is ten percent above the baseline, `min_increase: 20` is 20 above it in the value's unit, and
    `deviations: 3` is three times the usual deviation from it.
    """

    above: float | None = Field(default=None, description="the value is above this")
    below: float | None = Field(default=None, description="the value is below this")
    above_baseline: float | None = Field(
        default=None, gt=0, description=("the value is above this multiple of the baseline")
    )
    below_baseline: float | None = Field(
        default=None, gt=0, description=("the value is below this multiple of the baseline")
    )
    deviations: float | None = Field(default=None, ge=0, description="number of deviations from the baseline")
    min_increase: float | None = Field(default=None, ge=0, description="above the baseline by more than this")
    min_decrease: float | None = Field(default=None, ge=0, description="below the baseline by more than this")

    @model_validator(mode="after")
    def _has_one_direction(self) -> Self:
        upward = [name for name in _UPWARDS if getattr(self, name) is not None]
        downward = [name for name in _DOWNWARDS if getattr(self, name) is not None]
        problems: list[Problem] = []
        if upward and downward:
            problems.append(
                ((downward[0],), f"{upward[0]} and {downward[0]} have opposite directions; write a rule for each")
            )
        if not upward and not downward:
            text = "give a bound, such as above: 0.05 or above_baseline: 1.1"
            problems.append((("deviations",) if self.deviations is not None else (), text))
        raise_problems(problems)
        return self

    @property
    def is_upper(self) -> bool:
        """Whether these are upper bounds, so that high values are bad."""
        return any(getattr(self, name) is not None for name in _UPWARDS)

    @property
    def sign(self) -> int:
        """1 if high values are bad, -1 if low ones are: a larger product with a value is worse."""
        return 1 if self.is_upper else -1

    @property
    def named_bounds(self) -> dict[str, float]:
        """The given bounds, by name."""
        return {name: value for name in BoundsSpec.model_fields if (value := getattr(self, name)) is not None}

    @property
    def relative_bounds(self) -> tuple[str, ...]:
        """The given bounds that need a baseline."""
        return tuple(name for name in _RELATIVE if getattr(self, name) is not None)


class BaselineSpec(Spec):
    """The value that a rule compares the current value with, by `kind`.

    - `hour_of_week`: the median of the same hour in past weeks, for the same labels. With data from too few weeks, the
      median of the same hour on all days.
    - `hour_of_day`: the median of the same hour on all days.
    - `peers`: the other label sets in the same minute, weighted by samples.
    - `fixed`: a number.
    """

    kind: Literal["hour_of_week", "hour_of_day", "peers", "fixed"]
    weeks: int = Field(default=4, ge=1, le=12, description="number of past weeks that are read")
    min_weeks: int = Field(default=2, ge=1, le=12, description="minimum number of weeks with data for the hour")
    within: Names = Field(default=(), description="peers only: labels that are equal for all peers")
    min_peers: int = Field(default=2, ge=1, description="peers only: minimum number of peers")
    value: float | None = Field(default=None, description="fixed only: the number")

    @model_validator(mode="after")
    def _check_kind_keys(self) -> Self:
        kinds = {
            "weeks": ("hour_of_week", "hour_of_day"),
            "min_weeks": ("hour_of_week",),
            "within": ("peers",),
            "min_peers": ("peers",),
            "value": ("fixed",),
        }
        problems: list[Problem] = [
            ((name,), f"{name} is a key of {' and '.join(of)}, and this is {self.kind}; remove it")
            for name, of in kinds.items()
            if self.kind not in of and getattr(self, name) != type(self).model_fields[name].default
        ]
        if self.kind == "fixed" and self.value is None:
            problems.append((("value",), "give the number that values are compared with"))
        if self.kind == "hour_of_week" and self.min_weeks > self.weeks:
            problems.append((("min_weeks",), f"only {self.weeks} weeks are read; write {self.weeks} at most"))
        raise_problems(problems)
        return self

    @property
    def is_historical(self) -> bool:
        """Whether the baseline is computed from past values."""
        return self.kind in ("hour_of_week", "hour_of_day")


class GroupingSpec(Spec):
    """Combines many alerts into one: if at least `min_alerts` label sets with equal values of `by` fire at the same
    time.
    """

    by: Names = ()
    min_alerts: int = Field(default=20, ge=2, description="number of simultaneous alerts that become one")


class RuleSpec(Spec):
    """A rule: SQL with a result row per minute and label set, evaluated minute by minute.

    The SQL has DuckDB's dialect. It reads tables and views of the pipeline by their bare names, between `$from` and
    `$to`. The result has the columns `minute`, the labels, `value` and, with `min_samples`, `samples`: the number of
    samples in the value. With `percentile` it has `bucket` in place of `value`: floor(100 * log10(x)), as in histograms
    of gold.
    """

    name: Name
    description: str = ""
    reads: Names = Field(min_length=1)
    sql: str
    labels: Names = Field(default=(), max_length=8)
    min_samples: int | None = Field(
        default=None, ge=1, description="minimum number of samples; with fewer, minutes are aggregated"
    )
    percentile: float | None = Field(default=None, gt=0, lt=1, description="the value is this percentile of buckets")
    baseline: BaselineSpec | None = None
    fire: BoundsSpec
    clear: BoundsSpec | None = Field(default=None, description="by default the bounds of `fire`")
    for_minutes: int = Field(
        default=3, ge=1, le=10_080, description=("how long all bounds must be crossed before it fires")
    )
    keep_firing_minutes: int = Field(
        default=5, ge=1, le=10_080, description="how long it must be clear before it resolves"
    )
    step_minutes: Literal[1, 5, 15, 60, 1440] = Field(default=1, description="interval of evaluated minutes")
    evaluation_delay_seconds: int = Field(
        default=90, ge=0, le=864_000, description=("delay after which a minute is evaluated")
    )
    stale_seconds: int | None = Field(
        default=None,
        ge=60,
        description="with older data the rule is `unknown`; by default evaluation_delay_seconds",
    )
    time_axis: Literal["event", "arrival"] = Field(
        default="event", description="`minute` in the result is event time, or time of arrival"
    )
    notify_within_seconds: int | None = Field(
        default=None, ge=1, description="promised time from an event to the notice; checked against the declaration"
    )
    no_data: Literal["unknown", "hold", "ok", "zero"] = "unknown"
    severity: Severity = "warning"
    grouping: GroupingSpec = GroupingSpec.defaults()
    inhibited_by: Names = Field(
        default=(), description=("rules that suppress notifications of this one while they fire")
    )
    runbook: str = Field(default="", description="what to do, for the people who are notified")

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        raise_problems([*self._bound_problems(), *self._label_problems(), *self._step_problems()])
        return self

    @property
    def clear_bounds(self) -> BoundsSpec:
        """The bounds for resolving an alert: a value is clear if it crosses none of them. The `fire` bounds by
        default."""
        return self.clear or self.fire

    @property
    def for_steps(self) -> int:
        """Number of consecutive steps over the bounds after which the rule fires."""
        return -(-self.for_minutes // self.step_minutes)

    @property
    def keep_firing_steps(self) -> int:
        """Number of consecutive clear steps after which the alert resolves."""
        return -(-self.keep_firing_minutes // self.step_minutes)

    @property
    def unknown_after_seconds(self) -> int:
        """Age of the newest data above which the rule's state is unknown."""
        stale = self.evaluation_delay_seconds if self.stale_seconds is None else self.stale_seconds
        return stale + 60 * self.step_minutes

    @property
    def _compares_with_peers(self) -> bool:
        return self.baseline is not None and self.baseline.kind == "peers"

    def _bound_problems(self) -> Iterator[Problem]:
        for key, bounds in (("fire", self.fire), ("clear", self.clear)):
            for name in bounds.relative_bounds if bounds is not None else ():
                if self.baseline is None:
                    yield (key, name), f"{name} needs a baseline; declare `baseline`"
                elif self.min_samples is None:
                    text = "random deviations depend on the number of samples; declare `min_samples`"
                    yield (key, name), f"{name} compares with a baseline, and {text}"
                elif name == "deviations" and self.baseline.kind == "fixed":
                    yield (key, name), "a fixed baseline has no spread; write min_increase or min_decrease"
        if self.baseline is not None and not self.fire.relative_bounds:
            yield ("baseline",), "no bound uses it; write above_baseline in `fire`, or remove it"
        if self.clear is not None:
            yield from _hysteresis_problems(self.fire, self.clear)

    def _label_problems(self) -> Iterator[Problem]:
        for index, label in enumerate(self.labels):
            if label in (MINUTE, VALUE, SAMPLES, BUCKET):
                yield ("labels", index), f"{label!r} is a reserved result column; use another label"
            elif label in self.labels[:index]:
                yield ("labels", index), f"{label!r} is named twice"
        within = self.baseline.within if self.baseline is not None else ()
        if self._compares_with_peers and not set(self.labels) - {*within}:
            yield (
                ("baseline", "kind"),
                "peers need a label that is not in `within`; add it to `labels`",
            )
        key_paths: list[tuple[KeyPath, str]] = [
            (("baseline", "within", index), name) for index, name in enumerate(within)
        ]
        key_paths += [(("grouping", "by", index), name) for index, name in enumerate(self.grouping.by)]
        for key_path, name in key_paths:
            if name not in self.labels:
                yield key_path, f"{name!r} is not a label of this rule; {suggest_name(name, self.labels)}"

    def _step_problems(self) -> Iterator[Problem]:
        for key in ("for_minutes", "keep_firing_minutes"):
            minutes = getattr(self, key)
            if minutes % self.step_minutes and minutes != type(self).model_fields[key].default:
                yield (key,), f"the rule is evaluated every {self.step_minutes} minutes; write a multiple of that"
        if self.stale_seconds is not None and self.stale_seconds < self.evaluation_delay_seconds:
            yield (
                ("stale_seconds",),
                (f"a minute is evaluated after {self.evaluation_delay_seconds} s; write at least that"),
            )
        shortest = self.evaluation_delay_seconds + 60 * self.step_minutes
        if self.no_data == "zero" and (self.stale_seconds or 0) < shortest:
            text = f"the newest row is older than that when zeros have fired; write at least {shortest}"
            yield ("stale_seconds",), text
        if self.no_data == "zero" and (self.percentile is not None or self._compares_with_peers):
            text = "only a value of its own can be zero: remove `percentile`, and compare with the past or a number"
            yield ("no_data",), text
        if self.percentile is not None and self.min_samples is None:
            yield ("samples",), "a percentile needs a minimum number of samples; declare it"


def _hysteresis_problems(fire: BoundsSpec, clear: BoundsSpec) -> Iterator[Problem]:
    """Yields clear bounds that lie beyond the fire bounds, so that a cleared rule would fire again."""
    for name, bound in clear.named_bounds.items():
        fire_bound = fire.named_bounds.get(name)
        if fire_bound is None:
            yield ("clear", name), f"`fire` has no {name}; use the same bounds as `fire`, closer to normal values"
        elif (bound < fire_bound) if name in ("below", "below_baseline") else (bound > fire_bound):
            yield (
                ("clear", name),
                (f"{bound:g} is beyond {fire_bound:g} of `fire`: it would be clear and fire at the same time"),
            )
