"""Evaluates each complete minute of one rule once.

The new state and its alert events are written in one conditional write. If two processes evaluate the same rule, the
second write fails, and its process continues from the state of the first. So a restart, a second process or an outage
changes no episode and no notification.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from deltaworks.control import paths
from deltaworks.control.clock import parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ConcurrencyError
from deltaworks.rules.annotations import recent_annotation_lines
from deltaworks.rules.baselines import Baselines
from deltaworks.rules.evaluation import Episode, RuleEvaluation, minute_of, minute_start, parse_minute
from deltaworks.rules.inputs import InputFreshness
from deltaworks.rules.messages import alert_event
from deltaworks.rules.open_alerts import AlertDecision, OpenAlerts
from deltaworks.rules.rule_alerts import RuleAlerts, deliver, unknown_after, waiting_problem
from deltaworks.rules.rule_query import RuleQuery
from deltaworks.rules.stored_state import AlertEvent, RuleState, episode_from_record
from deltaworks.rules.subjects import Labels
from deltaworks.specs.alert_rule import MAX_LABEL_SETS, RuleSpec

#: Maximum number of minutes that are evaluated after an outage. Older minutes count as unknown.
CATCH_UP_MINUTES = 360
_CATCH_UP_STEPS = 30
#: Minutes between new texts of an alert that stays open.
_RENEWAL_MINUTES = 5
#: From this hour (UTC) the baseline of the next date is built.
_BASELINE_HOUR = 22


@dataclass(frozen=True, slots=True)
class DueMinutes:
    """A range of minutes to evaluate (inclusive). `skipped` is the last minute that is too old to be evaluated."""

    first: int
    last: int
    skipped: int | None = None


class RuleEvaluator:
    """Evaluates one rule from its stored state. Not thread-safe; other processes may evaluate the same rule."""

    def __init__(self, objects: ObjectStore, pipeline: str, query: RuleQuery) -> None:
        self.rule: RuleSpec = query.rule
        self.query = query
        self._objects = objects
        self._pipeline = pipeline
        self._key = paths.rule_state(pipeline, query.rule.name)
        self._baselines = Baselines(objects, pipeline, query)
        self._etag: str | None = None
        self._state: RuleState | None = None
        #: The evaluation after the last write; None to rebuild it from the stored state.
        self._evaluation: RuleEvaluation | None = None
        #: Whether the rule is evaluated up to its newest data, so that rules it inhibits need not wait.
        self.is_current = False

    @property
    def state(self) -> RuleState:
        """The stored state, as last read or written."""
        if self._state is None:
            item = self._objects.get(self._key)
            self._etag = None if item is None else item.etag
            fresh = RuleState(pipeline=self._pipeline, rule=self.rule.name, labels=self.rule.labels)
            self._state = fresh if item is None else RuleState.decode(item.data, key=self._key)
        return self._state

    @property
    def last_minute(self) -> int | None:
        """The last evaluated minute; None before the first."""
        last = self.state.last_minute
        return None if last is None else parse_minute(last)

    def due_minutes(
        self, freshness: InputFreshness, now: dt.datetime, *, inhibitors_until: int | None = None
    ) -> DueMinutes | None:
        """Returns the complete minutes to evaluate, or None.

        Args:
            inhibitors_until: the last minute for which all inhibiting rules are evaluated.
        """
        step, newest_at = self.rule.step_minutes, freshness.newest_at
        if newest_at is None:
            return None
        last = self._last_settled(now)
        if not self._needs_no_later_rows(freshness):
            # Daily rows arrive together. A shorter step is complete when later rows exist.
            last = min(last, (minute_of(newest_at) - (0 if step == 1440 else step)) // step * step)
        last = last if inhibitors_until is None else min(last, inhibitors_until // step * step)
        previous = self.last_minute if self._labels_are_unchanged else None
        if previous is None:
            return DueMinutes(last, last)
        if last <= previous:
            return None
        max_minutes = max(CATCH_UP_MINUTES // step, _CATCH_UP_STEPS) * step
        if last - previous > max_minutes:
            return DueMinutes(last - max_minutes + step, last, last - max_minutes)
        return DueMinutes(previous + step, last)

    @property
    def has_known_state(self) -> bool:
        """Whether the rule was evaluated, and its data are not overdue."""
        return bool(self.state.last_minute) and "RULE_UNKNOWN" not in self.state.rule_alerts

    def has_settled_minute(self, now: dt.datetime) -> bool:
        """Whether the clock allows another minute to be evaluated. Until then, tables need not be looked at."""
        previous = self.last_minute if self._labels_are_unchanged else None
        return previous is None or self._last_settled(now) > previous

    def _last_settled(self, now: dt.datetime) -> int:
        step = self.rule.step_minutes
        return (minute_of(now - dt.timedelta(seconds=self.rule.evaluation_delay_seconds)) - step) // step * step

    def _needs_no_later_rows(self, freshness: InputFreshness) -> bool:
        """Whether a settled minute is complete even if no later rows exist: rows have their time of arrival, or the
        stream has read all of its source.
        """
        return self.rule.time_axis == "arrival" or freshness.is_source_read

    def evaluate(
        self,
        connection: duckdb.DuckDBPyConnection,
        due: DueMinutes,
        freshness: InputFreshness,
        now: dt.datetime,
        inhibitors: Sequence[RuleEvaluator] = (),
    ) -> None:
        """Evaluates due minutes and delivers alert events.

        Raises:
            ConcurrencyError: RULE_EVALUATED_ELSEWHERE, another process wrote first; no event is lost or sent twice.
            ContractError: RULE_BROKEN; no minute counts as evaluated.
        """
        state, outbox = self._starting_state()
        # Discarded on failure: minutes that were not written are evaluated again.
        evaluation, self._evaluation = self._evaluation or state.evaluation(self.rule), None
        open_alerts = OpenAlerts(self._pipeline, self.rule, state.open_alerts())
        rule_alerts = self._rule_alerts(state)
        is_live = self._is_within_bound(freshness.newest_at, now)
        if due.skipped is not None:
            # Minutes are also skipped when live data follow data of the past.
            if state.was_live and not state.waiting:
                outbox += rule_alerts.report_skipped(evaluation.last_minute, due.skipped, now)
            evaluation.skip_to(due.skipped)
        self._ensure_baselines(connection, due, state)
        ended: list[Episode] = []
        widest = 0
        # Empty minutes before the first live row are those of a pipeline that did not run.
        may_be_zero = not state.waiting and due.skipped is None
        for minute_rows in self.query.read_minutes(connection, due.first, due.last):
            may_be_zero = may_be_zero or bool(minute_rows.rows)
            ended += evaluation.evaluate(minute_rows, self._baselines.at, may_be_zero=may_be_zero)
            widest = max(widest, minute_rows.width)
            # Data of the past, such as those of a backfill, call for no action: they are judged, and nothing is raised.
            for decision in open_alerts.update(
                evaluation, minute_rows.minute, _InhibitorLookup(self.rule, inhibitors), may_raise=is_live
            ):
                annotations = self._recent_annotations(decision.minute) if decision.kind == "raise" else ()
                outbox.append(self._firing_event(decision, evaluation, freshness, annotations))
        if is_live and _is_renewal_due(due, self.rule.step_minutes):
            raised = {event.subject for event in outbox}
            outbox += [
                self._firing_event(decision, evaluation, freshness, self._recent_annotations(alert_minute))
                for decision, alert_minute in open_alerts.renewals(due.last)
                if decision.alert.subject not in raised
            ]
        outbox += rule_alerts.check_width(widest if widest > MAX_LABEL_SETS else 0, now)
        outbox += rule_alerts.report_working(now)
        new_state = state.with_evaluation(evaluation, ended, list(open_alerts.by_subject.values()))
        new_state = new_state.replace(problem="", waiting=False, was_live=state.was_live or is_live)
        if not is_live:
            new_state, events = self._waiting(new_state, rule_alerts, freshness, now)
            outbox += events
        elif due.skipped is None or state.waiting:
            outbox += rule_alerts.check_unknown(evaluation, freshness, now)
        self._write(self._updated_state(new_state, outbox, rule_alerts, freshness))
        self._evaluation = evaluation
        self.deliver()

    def report_not_evaluated(
        self, freshness: InputFreshness, now: dt.datetime, *, problem: str = "", repair: str = ""
    ) -> None:
        """Raises alerts about the rule itself when no minute can be evaluated: stale data or failing SQL.

        Args:
            repair: the next step for a problem that is not in the rule's SQL.

        Raises:
            ConcurrencyError: RULE_EVALUATED_ELSEWHERE.
        """
        state, outbox = self._starting_state()
        rule_alerts = self._rule_alerts(state)
        new_state = state.replace(problem=f"{problem} {repair}".rstrip(), waiting=False)
        if problem:
            outbox += rule_alerts.report_broken(problem, now, next_step=repair)
        elif freshness.missing or not self._is_within_bound(freshness.newest_at, now):
            new_state, events = self._waiting(new_state, rule_alerts, freshness, now)
            outbox += events
        else:
            outbox += rule_alerts.check_unknown(self._evaluation or state.evaluation(self.rule), freshness, now)
        new_state = self._updated_state(new_state, outbox, rule_alerts, freshness)
        if new_state.replace(data_until=state.data_until) != state:
            self._write(new_state)
        self.deliver()

    def _waiting(
        self, state: RuleState, rule_alerts: RuleAlerts, freshness: InputFreshness, now: dt.datetime
    ) -> tuple[RuleState, list[AlertEvent]]:
        """Returns the state of a rule that waits for data, and the events that tell so if it had recent data before.

        A rule that never had any is not in trouble: a pipeline may have no source yet, or only data of the past. If an
        input has lost all its rows, the newest ones seen before decide how long it may have none.
        """
        seen_at = parse_iso(state.data_until) if freshness.newest_at is None else freshness.newest_at
        problem = waiting_problem(self.rule, freshness)
        new_state = state.replace(problem=problem, waiting=True)
        if not state.was_live or self._is_within_bound(seen_at, now):
            return new_state, []
        return new_state, rule_alerts.report_waiting(problem, freshness, now)

    def _is_within_bound(self, newest_at: dt.datetime | None, now: dt.datetime) -> bool:
        return newest_at is not None and now - newest_at <= unknown_after(self.rule)

    def _rule_alerts(self, state: RuleState) -> RuleAlerts:
        return RuleAlerts(self._pipeline, self.rule, dict(state.rule_alerts), dict(state.rule_alert_texts))

    def deliver(self) -> None:
        """Delivers the alert events in the outbox and empties it.

        Raises:
            ConcurrencyError: RULE_EVALUATED_ELSEWHERE.
            TransientError: the control storage is unreachable.
        """
        state = self.state
        if state.outbox:
            deliver(self._objects, state.outbox)
            self._write(state.replace(outbox=()))

    def build_next_baseline(self, connection: duckdb.DuckDBPyConnection, now: dt.datetime) -> None:
        """Builds the baseline of the next date if it is evening. Idempotent.

        Raises:
            ContractError: RULE_BROKEN.
        """
        if self._needs_learned_baseline and now.hour >= _BASELINE_HOUR:
            self._baselines.ensure(connection, now.date() + dt.timedelta(days=1), self._episodes())

    def fired_at(self, rule: RuleSpec, labels: Labels, minute: int) -> bool:
        """Whether this rule fired in a minute for a label set of another rule, compared by the labels that both rules
        have.
        """
        shared = [(self.rule.labels.index(name), at) for at, name in enumerate(rule.labels) if name in self.rule.labels]
        for episode in self._episodes():
            during = episode.fired <= minute and (episode.ended is None or minute < episode.ended)
            if during and all(episode.labels[own_position] == labels[other] for own_position, other in shared):
                return True
        return False

    @property
    def _labels_are_unchanged(self) -> bool:
        return self.state.labels == self.rule.labels

    @property
    def _needs_learned_baseline(self) -> bool:
        return self.rule.baseline is not None and self.rule.baseline.is_historical

    def _episodes(self) -> list[Episode]:
        return [episode_from_record(record) for record in self.state.episodes]

    def _starting_state(self) -> tuple[RuleState, list[AlertEvent]]:
        """Returns the state to continue from.

        If the declared labels have changed, all open alerts are resolved and the state starts empty.
        """
        state, outbox = self.state, list(self.state.outbox)
        if self._labels_are_unchanged:
            return state, outbox
        decisions = OpenAlerts(self._pipeline, self.rule, state.open_alerts())
        evaluation = RuleEvaluation(self.rule)
        outbox += [alert_event(decision, evaluation, reads=(), data_until="") for decision in decisions.resolve_all(0)]
        fresh = RuleState(
            pipeline=self._pipeline,
            rule=self.rule.name,
            labels=self.rule.labels,
            rule_alerts=state.rule_alerts,
            rule_alert_texts=state.rule_alert_texts,
            was_live=state.was_live,
        )
        return fresh, outbox

    def _ensure_baselines(self, connection: duckdb.DuckDBPyConnection, due: DueMinutes, state: RuleState) -> None:
        if not self._needs_learned_baseline:
            return
        date, last = minute_start(due.first).date(), minute_start(due.last).date()
        while date <= last:
            self._baselines.ensure(connection, date, [episode_from_record(record) for record in state.episodes])
            date += dt.timedelta(days=1)

    def _firing_event(
        self,
        decision: AlertDecision,
        evaluation: RuleEvaluation,
        freshness: InputFreshness,
        annotations: Sequence[str],
    ) -> AlertEvent:
        data_until = _format_time(freshness.newest_at)
        return alert_event(decision, evaluation, reads=freshness.labels, data_until=data_until, annotations=annotations)

    def _recent_annotations(self, minute: int) -> list[str]:
        return recent_annotation_lines(self._objects, self._pipeline, minute_start(minute))

    def _updated_state(
        self, state: RuleState, outbox: Sequence[AlertEvent], rule_alerts: RuleAlerts, freshness: InputFreshness
    ) -> RuleState:
        return state.replace(
            outbox=tuple(outbox),
            rule_alerts=rule_alerts.raised,
            rule_alert_texts=rule_alerts.texts,
            data_until=_format_time(freshness.newest_at) or state.data_until,
            problem=state.problem,
        )

    def _write(self, state: RuleState) -> None:
        data = state.encode()
        if self._etag is None:
            written = self._objects.put_if_absent(self._key, data)
            self._etag = self._objects.etag(self._key) if written else None
        else:
            self._etag = self._objects.put_if_match(self._key, data, self._etag)
        if self._etag is None:
            self._state = self._evaluation = None
            raise ConcurrencyError(
                "RULE_EVALUATED_ELSEWHERE",
                f"Rule {self._pipeline}.{self.rule.name} was evaluated by another process at the same time.",
            )
        self._state = state


class _InhibitorLookup:
    """Finds the firing rule that inhibits another rule."""

    def __init__(self, rule: RuleSpec, inhibitors: Sequence[RuleEvaluator]) -> None:
        self._rule, self._inhibitors = rule, inhibitors

    def __call__(self, labels: Labels, minute: int) -> str | None:
        for inhibitor in self._inhibitors:
            if inhibitor.fired_at(self._rule, labels, minute):
                return inhibitor.rule.name
        return None


def _format_time(at: dt.datetime | None) -> str:
    return "" if at is None else at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_renewal_due(due: DueMinutes, step_minutes: int) -> bool:
    """Returns whether the minutes reach a multiple of _RENEWAL_MINUTES, so that a catch-up renews texts once."""
    return due.last // _RENEWAL_MINUTES > (due.first - step_minutes) // _RENEWAL_MINUTES
