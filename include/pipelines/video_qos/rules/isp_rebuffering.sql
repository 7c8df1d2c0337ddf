-- Stalled time over stalled and played time of a provider, without stalls after a seek. Ratios are weighted by milliseconds.
SELECT date_trunc('minute', event_time) AS minute, coalesce(isp, 'unknown') AS isp,
  coalesce(sum(stalled_ms) FILTER (event_name = 'stall' AND NOT coalesce(after_seek, false)), 0)
    / nullif(sum(played_ms) + coalesce(sum(stalled_ms) FILTER (event_name = 'stall' AND NOT coalesce(after_seek, false)), 0), 0)
    AS value,
  sum(played_ms) + coalesce(sum(stalled_ms) FILTER (event_name = 'stall' AND NOT coalesce(after_seek, false)), 0) AS samples
FROM player_events
WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
GROUP BY ALL
