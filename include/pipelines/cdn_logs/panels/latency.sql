-- Exact percentiles of the time to the first byte of media hits, by CDN.
SELECT minute, value AS cdn, first_byte_ms_p95
FROM cdn_latency
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to AND dimension = 'cdn'
ORDER BY minute
