-- Fractions of the attempts of each minute that never started, were abandoned before the start, or failed.
SELECT minute, 100 * start_failure_rate AS "not started", 100 * exit_rate AS "left before it started",
  100 * playback_failure_rate AS "failed"
FROM noc
WHERE minute >= $from AND minute < $to
ORDER BY minute
