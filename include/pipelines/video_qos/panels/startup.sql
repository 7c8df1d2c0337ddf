-- Plays by their time to the first frame, in bins a quarter of a power of ten wide.
SELECT 10 ** (floor(bucket / 25) / 4) / 1000 AS seconds, sum(plays)::BIGINT AS plays
FROM startup_histogram
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY seconds
ORDER BY seconds
