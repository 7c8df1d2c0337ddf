-- One row per date of installation: installed devices, and those with an event exactly one and seven days later. Null until that
-- day is over, which is when the next day has an event.
WITH cohort AS (
  SELECT DISTINCT event_date AS cohort_date, device_id FROM install
),
active AS (
  SELECT DISTINCT event_date AS active_date, device_id FROM events
),
ended AS (
  SELECT DISTINCT date_add(active_date, -1) AS ended_date FROM active
)
SELECT
  cohort.cohort_date,
  count(*) AS installs,
  CASE WHEN count(ended_1.ended_date) > 0 THEN count(day_1.device_id) END AS retained_day_1,
  CASE WHEN count(ended_7.ended_date) > 0 THEN count(day_7.device_id) END AS retained_day_7
FROM cohort
LEFT JOIN active AS day_1
  ON day_1.device_id = cohort.device_id AND day_1.active_date = date_add(cohort.cohort_date, 1)
LEFT JOIN active AS day_7
  ON day_7.device_id = cohort.device_id AND day_7.active_date = date_add(cohort.cohort_date, 7)
LEFT JOIN ended AS ended_1 ON ended_1.ended_date = date_add(cohort.cohort_date, 1)
LEFT JOIN ended AS ended_7 ON ended_7.ended_date = date_add(cohort.cohort_date, 7)
GROUP BY cohort.cohort_date
