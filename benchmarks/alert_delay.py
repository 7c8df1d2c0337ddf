"""`alert_delay`: seconds from the first bad event of a generated incident to the notice of each shipped rule.

Each rule gets `INCIDENTS` seeded incidents at `EVENTS_PER_MINUTE`, at random times of a day. Events arrive in a Delta
lake as a stream with the declared trigger would commit them (`alert_lakes`), and the rule process's evaluator runs
every three seconds of simulated time. Only the clock is simulated: tables, SQL, states and alerts are real, and the
real duration of an evaluation is added. The result of a rule is the 95th percentile against its promised
`notify_within_seconds`; `missed` incidents have no notice within three times of that.

`QUIET_DAYS` without an incident are evaluated by the backtest, which uses the same SQL, states and decisions, at
`QUIET_EVENTS_PER_MINUTE`: fewer samples are noisier. `false_notices` counts their notices.
"""

from __future__ import annotations

import datetime as dt
import math
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Benchmark, Options, Result, TinySize, single_result

if TYPE_CHECKING:
    from benchmarks.alert_lakes import SimulatedLake
    from deltaworks.specs.catalog import Catalog

INCIDENTS, EVENTS_PER_MINUTE = 20, 50_000
QUIET_DAYS, QUIET_EVENTS_PER_MINUTE = 10, 5_000
#: Rules to measure; all if empty.
ONLY: tuple[str, ...] = ()
#: A Monday, whose four previous Mondays are the history of rules by the hour of the week.
DAY = dt.datetime(2026, 3, 30, tzinfo=dt.UTC)
_WARM_UP_MINUTES = 2
_QUIET_CHUNK_MINUTES = 120
#: Generated minutes that give the means of past days.
_REFERENCE_MINUTES = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one incident: seconds to its notice, None if it was missed, and notices of anything else."""

    seconds: float | None
    others: int


def run(options: Options) -> list[Result]:
    """Measures every rule and returns a result for each."""
    from benchmarks.scratch_folders import scratch_folder
    from generator.alert_traffic import INCIDENTS as RULES

    results = []
    for rule, world in RULES.items():
        if ONLY and rule not in ONLY:
            continue
        with scratch_folder("alert_delay") as folder:
            history = _write_history(folder / "history", world, rule)
            outcomes = []
            for number in range(INCIDENTS):
                outcomes.append(_run_incident(folder / "lake", history, world, rule, number))
                options.progress(f"alert_delay: {world}.{rule}: incident {number + 1}: {outcomes[-1]}")
                shutil.rmtree(folder / "lake")
            false = _false_notices(folder, world, rule)
            options.progress(f"alert_delay: {world}.{rule}: {false} notices in {QUIET_DAYS} quiet days")
            results.append(_result(folder, world, rule, outcomes, false))
    return results


def _result(folder: Path, world: str, rule: str, outcomes: Sequence[Outcome], false: int) -> Result:
    from benchmarks.alert_lakes import rule_catalog, rule_of

    target = rule_of(rule_catalog(folder, world, rule), rule).notify_within_seconds or 0
    seconds = sorted(item.seconds for item in outcomes if item.seconds is not None)
    # Nearest rank over all incidents: a missed one lasts as long as it was waited for.
    rank = math.ceil(0.95 * len(outcomes)) - 1
    p95 = seconds[rank] if rank < len(seconds) else 3.0 * target
    parts = {
        "p50": round(statistics.median(seconds), 1) if seconds else 3.0 * target,
        "missed": len(outcomes) - len(seconds),
        "other_notices": sum(item.others for item in outcomes),
        "false_notices": false,
    }
    sizes = {
        "incidents": len(outcomes),
        "events_per_minute": EVENTS_PER_MINUTE,
        "quiet_days": QUIET_DAYS,
        "quiet_events_per_minute": QUIET_EVENTS_PER_MINUTE,
    }
    result = single_result(
        BENCHMARK.name, f"{world}.{rule}", (p95, float(target)), other_name="target", sizes=sizes, parts=parts
    )
    return replace(result, ours_all=tuple(round(second, 1) for second in seconds))


def _run_incident(folder: Path, history: Path, world: Any, rule: str, number: int) -> Outcome:
    """Generates one incident, lets its events arrive, and evaluates the rule until it tells."""
    from benchmarks.alert_lakes import SimulatedLake, rule_catalog, rule_of
    from generator.alert_traffic import AlertTraffic

    shutil.copytree(history, folder)
    random = Random(f"{rule}/{number}")
    incident_at = DAY + dt.timedelta(seconds=random.uniform(2, 21) * 3600)
    traffic = AlertTraffic(
        world=world,
        seed=number,
        events_per_minute=EVENTS_PER_MINUTE,
        incident=rule,
        incident_at=incident_at,
        is_dark=number % 2 == 1,
    )
    catalog = rule_catalog(folder, world, rule)
    limit = rule_of(catalog, rule).notify_within_seconds or 180
    first = (incident_at - dt.timedelta(minutes=_WARM_UP_MINUTES)).replace(second=0, microsecond=0)
    with SimulatedLake(catalog, traffic) as lake:
        return _evaluate_until_notified(lake, rule, first, incident_at + dt.timedelta(seconds=3 * limit), random)


def _evaluate_until_notified(
    lake: SimulatedLake, rule: str, first: dt.datetime, until: dt.datetime, random: Random
) -> Outcome:
    from deltaworks.control.objects import open_objects
    from deltaworks.rules.inputs import RuleTables
    from deltaworks.rules.process import PipelineEvaluator
    from deltaworks.specs.notice_delay import EVALUATION_INTERVAL_SECONDS
    from deltaworks.tables.lake import Lake

    storage, world = lake.catalog.environment.lake, lake.traffic.world
    objects, tables = open_objects(storage), RuleTables(Lake(storage))
    evaluator = PipelineEvaluator(lake.catalog, world, objects, tables)
    commits = sorted(lake.commits(first, until, random.uniform(0, 30)), key=lambda commit: commit[0])
    now, others = first + dt.timedelta(seconds=random.uniform(0, 3)), 0
    while now < until:
        while commits and commits[0][0] <= now:
            commits.pop(0)[1]()
            _beat(objects, world, now)
        tables.mark_stale()
        started = time.perf_counter()
        advanced = evaluator.evaluate(now)
        seconds = time.perf_counter() - started
        if advanced:
            is_notified, others = _notices(objects, rule, lake.traffic.expected_labels)
            if is_notified and lake.began_at is not None:
                return Outcome(round((now - lake.began_at).total_seconds() + seconds, 1), others)
        now += dt.timedelta(seconds=EVALUATION_INTERVAL_SECONDS)
    if lake.began_at is None:
        raise RuntimeError(f"the traffic of {rule} has no incident")
    return Outcome(None, others)


def _beat(objects: Any, pipeline: str, now: dt.datetime) -> None:
    """Writes the heartbeat of a stream that has read all of its source."""
    from deltaworks.control import paths
    from deltaworks.control.health.heartbeat import Heartbeat

    at = f"{now:%Y-%m-%dT%H:%M:%S.%f}+00:00"
    beat = Heartbeat(
        pipeline=pipeline,
        owner="bench",
        epoch=1,
        run="r",
        state="running",
        written_at=at,
        started_at=at,
        trigger_seconds=30,
    )
    objects.put(paths.heartbeat(paths.pipeline_control(pipeline)), beat.encode())


def _notices(objects: Any, rule: str, expected: dict[str, str]) -> tuple[bool, int]:
    """Returns whether the incident was notified, and the number of notices of the rule about other label sets."""
    from deltaworks.alerts.raising import alerts

    is_notified, others = False, 0
    for alert in alerts(objects):
        detail = alert.detail
        if alert.cause != "RULE_FIRING" or detail.get("rule") != rule:
            continue
        named = [detail.get("labels") or {}, *(detail.get("label_sets") or ())]
        if any(expected.items() <= labels.items() for labels in named):
            is_notified = True
        else:
            others += 1
    return is_notified, others


def _write_history(folder: Path, world: str, rule: str, *, days: Sequence[int] = (28, 21, 14, 7)) -> Path:
    """Writes gold of past days, so many days before DAY, and what else was there before the incident."""
    from benchmarks.alert_lakes import SimulatedLake, rule_catalog
    from generator.alert_traffic import AlertTraffic

    folder.mkdir(parents=True)
    catalog = rule_catalog(folder, world, rule)
    with SimulatedLake(catalog, AlertTraffic(world=world, seed=0, events_per_minute=EVENTS_PER_MINUTE)) as lake:  # type: ignore[arg-type]
        if world == "stocks":
            _write_sessions(lake, late=rule == "filing_late")
        for table in lake.gold:
            _write_gold(lake, table, days)
    return folder


def _write_gold(lake: SimulatedLake, table: str, days: Sequence[int]) -> None:
    """Writes minutes of a gold table for past days: the means of ten generated minutes, by the load, with noise."""
    reference = DAY.replace(hour=13) - dt.timedelta(days=2)
    lake.traffic.generate(lake.connection, reference, _REFERENCE_MINUTES)
    lake.connection.execute("CREATE OR REPLACE TEMP VIEW batch AS SELECT * FROM traffic")
    for name in lake.tables:
        from benchmarks.alert_lakes import BRONZE

        lake.connection.execute(
            f"CREATE OR REPLACE TABLE {name} AS SELECT event_time::DATE AS event_date, * "
            f"FROM (SELECT {BRONZE[lake.traffic.world, name]})"
        )
    lake.connection.register("reference_rows", lake.gold_rows(table))
    starts = [int((DAY - dt.timedelta(days=day)).timestamp() // 60) for day in days]
    lake.connection.execute(
        "CREATE OR REPLACE TEMP TABLE past AS SELECT start + step AS minute, busy(start + step) / "
        f"(SELECT avg(busy(?::BIGINT + step)) FROM range(0, {_REFERENCE_MINUTES}) AS steps(step)) AS load "
        f"FROM (SELECT unnest({starts}) AS start), range(0, 1440) AS steps(step)",
        [int(reference.timestamp() // 60)],
    )
    sql = {
        "events_minute": f"""
            SELECT platform, country, NULL::VARCHAR AS app_version, greatest(0, round(mean * load
              + sqrt(mean * load) * normal(minute, number, 0, 'events')))::BIGINT AS events, minute
            FROM past, (SELECT platform, country, sum(events) / {_REFERENCE_MINUTES} AS mean,
              row_number() OVER (ORDER BY platform, country) AS number
              FROM reference_rows GROUP BY platform, country)""",
        "bookings_minute": f"""
            SELECT platform, NULL::VARCHAR AS app_version, minute, purchases, greatest(0, purchases * 5.6
              + sqrt(purchases) * 7.2 * normal(minute, number, 0, 'amount'))::DECIMAL(18, 2) AS bookings
            FROM (SELECT platform, number, minute, greatest(0, round(mean * load
                + sqrt(mean * load) * normal(minute, number, 0, 'purchases')))::BIGINT AS purchases
              FROM past, (SELECT platform, sum(purchases) / {_REFERENCE_MINUTES} AS mean,
                row_number() OVER (ORDER BY platform) AS number FROM reference_rows GROUP BY platform))""",
        "latency_histogram": """
            SELECT minute, 'FRA' AS edge, 'Northnet' AS isp, bucket::INT AS bucket,
              (40 * count(*))::BIGINT AS media_hits
            FROM (SELECT minute, floor(100 * log10(1000 * 0.035 * exp(0.5 * normal(minute, n, 0, 'latency'))
                * (1 + 0.15 * sin(2 * pi() * (minute - 780) / 1440)))) AS bucket
              FROM past, range(0, 500) AS hits(n))
            GROUP BY ALL""",
    }[table]
    rows = lake.connection.execute(
        f"SELECT make_timestamptz(minute * 60000000)::DATE AS event_date, * EXCLUDE (minute), "
        f"make_timestamptz(minute * 60000000) AS minute FROM ({sql}) ORDER BY 1"
    ).to_arrow_table()
    lake.write(table, rows)


def _write_sessions(lake: SimulatedLake, *, late: bool) -> None:
    """Writes the closes of twelve sessions before DAY, no splits, and annual earnings that are old for one ticker."""
    from benchmarks.alert_lakes import SESSION_MINUTES
    from generator.alert_traffic import TICKER

    for day in range(12, 0, -1):
        at = DAY - dt.timedelta(days=day) + dt.timedelta(hours=20)
        replace(lake.traffic, seed=day).generate(lake.connection, at, SESSION_MINUTES)
        lake.land("traffic", at + dt.timedelta(hours=1))
    lake.connection.execute(
        "CREATE OR REPLACE TEMP TABLE earnings AS SELECT DISTINCT ticker, DATE '2026-01-02' AS valid_from, "
        f"2026 AS valid_year, DATE '2026-03-30' - CASE WHEN {late} AND ticker = '{TICKER}' THEN 401 ELSE 90 END::INT "
        "AS annual_filed FROM traffic"
    )
    lake.write("eps_known", lake.connection.execute("SELECT * FROM earnings").to_arrow_table())
    lake.write(
        "splits",
        lake.connection.execute(
            "SELECT 'T000' AS ticker, DATE '2020-01-02' AS ex_date, 2::DECIMAL(9, 4) AS ratio"
        ).to_arrow_table(),
    )


def _false_notices(folder: Path, world: Any, rule: str) -> int:
    """Returns the notices of a rule in days without an incident."""
    from benchmarks.alert_lakes import SESSION_MINUTES, SimulatedLake, rule_catalog
    from generator.alert_traffic import AlertTraffic

    quiet, number = folder / "quiet", 0
    catalog = rule_catalog(quiet, world, rule)
    traffic = AlertTraffic(world=world, seed=99, events_per_minute=QUIET_EVENTS_PER_MINUTE)
    with SimulatedLake(catalog, traffic) as lake:
        if lake.gold:
            _write_history(quiet, world, rule, days=range(29, -QUIET_DAYS, -1))
            return _backtest(catalog, world, rule, DAY, QUIET_DAYS)
        for day in range(QUIET_DAYS):
            at = DAY + dt.timedelta(days=day)
            if world == "stocks":
                if day == 0:
                    _write_sessions(lake, late=False)
                replace(traffic, seed=200 + day).generate(lake.connection, at + dt.timedelta(hours=20), SESSION_MINUTES)
                lake.land("traffic", at + dt.timedelta(hours=21))
            else:
                for minute in range(0, 1440, _QUIET_CHUNK_MINUTES):
                    replace(traffic, seed=99 + day).generate(
                        lake.connection, at + dt.timedelta(minutes=minute), _QUIET_CHUNK_MINUTES
                    )
                    lake.land("traffic", at + dt.timedelta(days=2))
            number += _backtest(catalog, world, rule, at, 1)
            if world != "stocks":
                shutil.rmtree(quiet)
    return number


def _backtest(catalog: Catalog, world: str, rule: str, since: dt.datetime, days: int) -> int:
    from benchmarks.alert_lakes import rule_of
    from deltaworks.rules.backtest import backtest

    until = since + dt.timedelta(days=days)
    result = backtest(catalog, world, rule_of(catalog, rule), since=since, until=until, keep_points=False)
    return sum(notification.kind == "raised" for notification in result.notifications)


BENCHMARK = Benchmark(
    name="alert_delay",
    summary="seconds from the first bad event of a generated incident to the notice of each shipped rule",
    run=run,
    tiny=TinySize(
        constants={"INCIDENTS": 1, "QUIET_DAYS": 1, "EVENTS_PER_MINUTE": 50_000, "QUIET_EVENTS_PER_MINUTE": 1_000}
        | {"ONLY": ("crash_rate", "price_jump")}
    ),
)
