-- One row per date of installation: how many devices installed, and how many of them sent an event exactly one day
-- and exactly seven days later. A cohort younger than that counts what is there so far.
WITH cohort AS (
  SELECT DISTINCT event_date AS cohort_date, device_id FROM install
),
active AS (
  SELECT DISTINCT event_date AS active_date, device_id FROM events
)
SELECT
  cohort.cohort_date,
  count(*) AS installs,
  count(day_1.device_id) AS retained_day_1,
  count(day_7.device_id) AS retained_day_7
FROM cohort
LEFT JOIN active AS day_1
  ON day_1.device_id = cohort.device_id AND day_1.active_date = date_add(cohort.cohort_date, 1)
LEFT JOIN active AS day_7
  ON day_7.device_id = cohort.device_id AND day_7.active_date = date_add(cohort.cohort_date, 7)
GROUP BY cohort.cohort_date
