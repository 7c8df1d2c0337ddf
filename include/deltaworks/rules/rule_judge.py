"""Judges one rule further: the minutes that have become whole since it was judged last, each once.

What a minute came to, and what is to be told of it, is one conditional write. Whoever is second reads what the first
one wrote and judges on from there, so that a restart, a second process or an outage changes no episode and no notice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from deltaworks.control import rule_paths
from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ConcurrencyError
from deltaworks.rules.annotations import shown_before
from deltaworks.rules.baselines import Baselines
from deltaworks.rules.conditions import Conditions
from deltaworks.rules.delivery import deliver
from deltaworks.rules.inputs import Reach
from deltaworks.rules.judge import Episode, Judging
from deltaworks.rules.minutes import minute_of, parse_minute, start_of
from deltaworks.rules.observing import RuleQuery
from deltaworks.rules.states import RuleState, TellingRecord, episode_of
from deltaworks.rules.subjects import Labels
from deltaworks.rules.telling import Tellings
from deltaworks.rules.wording import telling_record
from deltaworks.specs.business_alert import MAX_LABEL_SETS, RuleSpec

#: After an outage minutes are judged that lie at most this far back; of older ones nothing is known.
CATCH_UP_MINUTES = 360
_CATCH_UP_STEPS = 30
#: From this hour on (UTC) the baseline of the next date is built.
_EVENING = 22


@dataclass(frozen=True, slots=True)
class Due:
    """Minutes to be judged, both included; `skipped` is the last of those that lie too far back."""

    first: int
    last: int
    skipped: int | None = None


class RuleJudge:
    """One rule of a pipeline, with what is on record of it. Used by one thread; others may judge the same rule."""

    def __init__(self, objects: ObjectStore, pipeline: str, query: RuleQuery) -> None:
        self.rule: RuleSpec = query.rule
        self.query = query
        self._objects = objects
        self._pipeline = pipeline
        self._key = rule_paths.rule_state(pipeline, query.rule.name)
        self._baselines = Baselines(objects, pipeline, query)
        self._etag: str | None = None
        self._state: RuleState | None = None
        #: The state, made ready to be judged further; None where it has to be made of what is on record.
        self._judging: Judging | None = None
        #: Whether it was judged to the end of its data at the last look, so that rules that wait for it need not.
        self.is_current = False

    @property
    def state(self) -> RuleState:
        """What is on record, as it was read or written last."""
        if self._state is None:
            item = self._objects.get(self._key)
            self._etag = None if item is None else item.etag
            fresh = RuleState(pipeline=self._pipeline, rule=self.rule.name, labels=self.rule.labels)
            self._state = fresh if item is None else RuleState.decode(item.data, key=self._key)
        return self._state

    @property
    def last_minute(self) -> int | None:
        """The minute judged last; None before the first."""
        last = self.state.last_minute
        return None if last is None else parse_minute(last)

    def due(self, reach: Reach, now: dt.datetime, *, no_further: int | None = None) -> Due | None:
        """Which minutes have become whole, None where none has.

        Args:
            no_further: the last minute that a rule was judged for that could hold this one back.
        """
        step, newest = self.rule.step_minutes, reach.newest_at
        if newest is None:
            return None
        settled = minute_of(now - dt.timedelta(seconds=self.rule.settle_seconds)) - step
        # A day's rows come at once; of anything finer the last minute is whole once there are rows behind it.
        reached = minute_of(newest) - (0 if step == 1440 else step)
        last = min(settled, reached) // step * step
        last = last if no_further is None else min(last, no_further // step * step)
        before = self.last_minute if self._is_same else None
        if before is None:
            return Due(last, last)
        if last <= before:
            return None
        bound = max(CATCH_UP_MINUTES // step, _CATCH_UP_STEPS) * step
        if last - before > bound:
            return Due(last - bound + step, last, last - bound)
        return Due(before + step, last)

    def judge(
        self,
        connection: duckdb.DuckDBPyConnection,
        due: Due,
        reach: Reach,
        now: dt.datetime,
        holders: Sequence[RuleJudge] = (),
    ) -> None:
        """Judge what is due, and tell of it.

        Raises:
            ConcurrencyError: RULE_JUDGED_ELSEWHERE, another process was first; nothing of this is lost or told twice.
            ContractError: RULE_BROKEN; no minute counts as judged.
        """
        state, outbox = self._begun()
        # Nobody else's from here on: what was judged and not written is to be judged again.
        judging, self._judging = self._judging or state.judging(self.rule), None
        tellings = Tellings(self._pipeline, self.rule, state.open_alerts())
        conditions = Conditions(self._pipeline, self.rule, dict(state.conditions))
        if due.skipped is not None:
            outbox += conditions.skipped(judging.last_minute, due.skipped, now)
            judging.skip_to(due.skipped)
        self._have_baselines(connection, due, state)
        ended: list[Episode] = []
        widest = 0
        for observed in self.query.observe(connection, due.first, due.last):
            ended += judging.take(observed, self._baselines.usual)
            widest = max(widest, observed.width)
            for telling in tellings.follow(judging, observed.minute, _Held(self.rule, holders)):
                before = self._noted(telling.minute) if telling.kind == "raise" else ()
                record = telling_record(
                    telling, judging, reads=reach.kinds, data_to=_text(reach.newest_at), before=before
                )
                outbox.append(record)
        outbox += conditions.too_wide(widest if widest > MAX_LABEL_SETS else 0, now)
        outbox += conditions.works(now)
        if due.skipped is None:
            outbox += conditions.unknown(judging, reach, now)
        after = state.with_judged(judging, ended, list(tellings.open.values()))
        self._write(self._with(after, outbox, conditions, reach))
        self._judging = judging
        self.deliver()

    def stand_by(self, reach: Reach, now: dt.datetime, *, problem: str = "") -> None:
        """Tell what has to be told though no minute can be judged: the data end, or the SQL fails.

        Raises:
            ConcurrencyError: RULE_JUDGED_ELSEWHERE.
        """
        state, outbox = self._begun()
        conditions = Conditions(self._pipeline, self.rule, dict(state.conditions))
        if problem:
            outbox += conditions.broken(problem, now)
        elif not reach.absent:
            outbox += conditions.unknown(self._judging or state.judging(self.rule), reach, now)
        problem = problem or (f"{', '.join(reach.absent)} is not there yet" if reach.absent else "")
        after = self._with(state.replace(problem=problem), outbox, conditions, reach)
        if after.replace(data_to=state.data_to) != state:
            self._write(after)
        self.deliver()

    def deliver(self) -> None:
        """Hand over what is to be told, and take it off the list.

        Raises:
            ConcurrencyError: RULE_JUDGED_ELSEWHERE; TransientError: the control area does not answer.
        """
        state = self.state
        if state.outbox:
            deliver(self._objects, state.outbox)
            self._write(state.replace(outbox=()))

    def prepare_tomorrow(self, connection: duckdb.DuckDBPyConnection, now: dt.datetime) -> None:
        """Build the baseline of the next date, in the evening. Idempotent.

        Raises:
            ContractError: RULE_BROKEN.
        """
        if self._is_learned and now.hour >= _EVENING:
            self._baselines.ensure(connection, now.date() + dt.timedelta(days=1), self._fired())

    def fires(self, rule: RuleSpec, labels: Labels, minute: int) -> bool:
        """Whether this one fired in a minute with the labels that another rule shares with it."""
        shared = [(self.rule.labels.index(name), at) for at, name in enumerate(rule.labels) if name in self.rule.labels]
        for episode in self._fired():
            during = episode.fired <= minute and (episode.ended is None or minute < episode.ended)
            if during and all(episode.labels[own] == labels[other] for own, other in shared):
                return True
        return False

    @property
    def _is_same(self) -> bool:
        return self.state.labels == self.rule.labels

    @property
    def _is_learned(self) -> bool:
        return self.rule.baseline is not None and self.rule.baseline.is_historical

    def _fired(self) -> list[Episode]:
        return [episode_of(record) for record in self.state.episodes]

    def _begun(self) -> tuple[RuleState, list[TellingRecord]]:
        """The state to go on from. Other labels are another rule: what was open of the old one ends."""
        state, outbox = self.state, list(self.state.outbox)
        if self._is_same:
            return state, outbox
        tellings = Tellings(self._pipeline, self.rule, state.open_alerts())
        blank = Judging(self.rule)
        outbox += [telling_record(telling, blank, reads=(), data_to="") for telling in tellings.end_all(0)]
        fresh = RuleState(
            pipeline=self._pipeline, rule=self.rule.name, labels=self.rule.labels, conditions=state.conditions
        )
        return fresh, outbox

    def _have_baselines(self, connection: duckdb.DuckDBPyConnection, due: Due, state: RuleState) -> None:
        if not self._is_learned:
            return
        date, last = start_of(due.first).date(), start_of(due.last).date()
        while date <= last:
            self._baselines.ensure(connection, date, [episode_of(record) for record in state.episodes])
            date += dt.timedelta(days=1)

    def _noted(self, minute: int) -> list[str]:
        return shown_before(self._objects, self._pipeline, start_of(minute))

    def _with(
        self, state: RuleState, outbox: Sequence[TellingRecord], conditions: Conditions, reach: Reach
    ) -> RuleState:
        return state.replace(
            outbox=tuple(outbox), conditions=conditions.open, data_to=_text(reach.newest_at), problem=state.problem
        )

    def _write(self, state: RuleState) -> None:
        data = state.encode()
        if self._etag is None:
            written = self._objects.put_if_absent(self._key, data)
            self._etag = self._objects.etag(self._key) if written else None
        else:
            self._etag = self._objects.put_if_match(self._key, data, self._etag)
        if self._etag is None:
            self._state = self._judging = None
            raise ConcurrencyError(
                "RULE_JUDGED_ELSEWHERE",
                f"The rule {self._pipeline}.{self.rule.name} was judged by another process meanwhile.",
                hint="Nothing is lost: what that one wrote is read, and judged on from.",
            )
        self._state = state


class _Held:
    """Which of the rules that hold another one back fires."""

    def __init__(self, rule: RuleSpec, holders: Sequence[RuleJudge]) -> None:
        self._rule, self._holders = rule, holders

    def __call__(self, labels: Labels, minute: int) -> str | None:
        for holder in self._holders:
            if holder.fires(self._rule, labels, minute):
                return holder.rule.name
        return None


def _text(at: dt.datetime | None) -> str:
    return "" if at is None else at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
