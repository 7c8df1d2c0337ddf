-- Fraction of installed devices that were active one and seven days later.
SELECT
  cohort_date AS date,
  100.0 * retained_day_1 / installs AS day_1,
  100.0 * retained_day_7 / installs AS day_7
FROM retention
WHERE cohort_date >= $from::DATE AND cohort_date < $to
ORDER BY date
