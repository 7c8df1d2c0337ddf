-- Media hits by their time to the first byte, in bins a quarter of a power of ten wide.
SELECT 10 ** (floor(bucket / 25) / 4) AS milliseconds, sum(media_hits)::BIGINT AS media_hits
FROM latency_histogram
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY milliseconds
ORDER BY milliseconds
