-- Bytes over transfer time.
SELECT minute, sum(bytes) / nullif(sum(seconds), 0) AS bytes_per_second
FROM cdn_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY minute
ORDER BY minute
