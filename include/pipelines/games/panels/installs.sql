-- Devices that installed, by date.
SELECT cohort_date AS date, installs
FROM retention
WHERE cohort_date >= $from::DATE AND cohort_date < $to
ORDER BY date
