-- Of the attempts of each minute: what never started, what was left before it did, and what failed.
SELECT minute, start_failure_rate, exit_rate, playback_failure_rate
FROM noc
WHERE minute >= $from AND minute < $to
ORDER BY minute
