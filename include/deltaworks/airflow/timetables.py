"""The timetable of gold DAGs: a cron expression, and one run per date for backfills."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.timetables.base import DagRunInfo
from airflow.timetables.trigger import CronTriggerTimetable

if TYPE_CHECKING:
    from airflow.timetables.base import DataInterval, TimeRestriction

#: Offset of a backfill run's logical date. Airflow allows one run per logical date, and a scheduled run may have
#: midnight. Cron expressions have no seconds, so no scheduled run has this offset.
_OFFSET_INTO_DATE = timedelta(seconds=1)
_DAY = timedelta(days=1)


class GoldTimetable(CronTriggerTimetable):
    """Timetable with a cron expression for scheduled runs. Backfills have one run per date, with any expression.

    The command `airflow backfill create --from-date A --to-date B` creates one run for each complete date from A to B.
    If the DAG itself has no catch-up, Airflow calls a timetable with `catchup` only for backfills.
    """

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Returns the next run, or the next date of a backfill."""
        if not restriction.catchup:
            return super().next_dagrun_info(
                last_automated_data_interval=last_automated_data_interval, restriction=restriction
            )
        if last_automated_data_interval is not None:
            date = last_automated_data_interval.start.start_of("day") + _DAY
        elif restriction.earliest is not None:
            date = restriction.earliest.start_of("day")
        else:
            return None
        if restriction.latest is not None and date > restriction.latest:
            return None
        return DagRunInfo.interval(date + _OFFSET_INTO_DATE, date + _DAY)
