-- Stalled time over stalled and played time of a provider. Ratios are weighted by milliseconds.
SELECT minute, coalesce(isp, 'unknown') AS isp,
  sum(stalled_ms) / nullif(sum(played_ms) + sum(stalled_ms), 0) AS value,
  sum(played_ms) + sum(stalled_ms) AS samples
FROM qos_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
GROUP BY ALL
