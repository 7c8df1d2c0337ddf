-- Hits over cacheable requests, by requests and by bytes.
SELECT minute, 100.0 * sum(hits) / nullif(sum(cacheable), 0) AS requests, 100.0 * sum(hit_bytes) / nullif(sum(cacheable_bytes), 0) AS bytes
FROM cdn_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY minute
ORDER BY minute
