-- A year has 350 to 380 days (371 with a 53rd week) and comes from a 10-K, possibly amended; a quarter has 80 to 100 days. The
-- arrival time only determines known_late_days.
SELECT f.event_date, c.ticker, f.cik, f.filed, f.form, f.accession, f.period_start, f.period_end, f.eps,
  datediff(f.period_end, f.period_start) + 1 AS period_days,
  CASE
    WHEN datediff(f.period_end, f.period_start) + 1 BETWEEN 350 AND 380 AND f.form LIKE '10-K%' THEN 'annual'
    WHEN datediff(f.period_end, f.period_start) + 1 BETWEEN 80 AND 100 THEN 'quarter'
    ELSE 'other'
  END AS kind,
  datediff(CAST(f._ingested_at AS DATE), f.filed) AS known_late_days
FROM facts f JOIN companies c ON c.cik = f.cik
WHERE f.filed IS NOT NULL
