-- Of the attempts of each minute: what never started, what was left before it did, and what failed.
SELECT minute, 100 * start_failure_rate AS "not started", 100 * exit_rate AS "left before it started",
  100 * playback_failure_rate AS "failed"
FROM noc
WHERE minute >= $from AND minute < $to
ORDER BY minute
