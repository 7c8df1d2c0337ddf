-- The newest installation dates and their retention.
SELECT cohort_date AS installed, installs, retained_day_1 AS "day 1", retained_day_7 AS "day 7"
FROM retention
WHERE cohort_date >= $from::DATE AND cohort_date < $to
ORDER BY installed DESC
