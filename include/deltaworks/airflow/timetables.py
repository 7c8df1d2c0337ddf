"""When gold is built: by its cron expression, and one run a date where somebody backfills."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.timetables.base import DagRunInfo
from airflow.timetables.trigger import CronTriggerTimetable

if TYPE_CHECKING:
    from airflow.timetables.base import DataInterval, TimeRestriction

#: A backfilled run's logical date lies this far into its date: at midnight a scheduled run may have been already, and
#: Airflow makes no second run for one logical date. No cron expression names a second.
_OFFSET_INTO_DATE = timedelta(seconds=1)
_DAY = timedelta(days=1)


class GoldTimetable(CronTriggerTimetable):
    """A cron expression for the scheduler; dates for a backfill, whatever the expression is.

    `airflow backfill create --from-date A --to-date B` makes one run for each date from A to B that is over. Airflow
    asks a timetable with `catchup` for a backfill, and for nothing else where the DAG itself does not catch up.
    """

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The next run; of a backfill, the next date."""
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
