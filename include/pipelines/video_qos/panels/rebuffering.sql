-- Stalled time over stalled and played time, by CDN.
SELECT minute, coalesce(cdn, 'unknown') AS cdn, 100.0 * sum(stalled_ms) / nullif(sum(played_ms) + sum(stalled_ms), 0) AS rebuffer_ratio
FROM qos_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY ALL
ORDER BY minute
