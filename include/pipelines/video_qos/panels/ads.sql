SELECT time_bucket(INTERVAL 1 HOUR, event_time) AS hour,
  CASE event_name WHEN 'ad_start' THEN 'started' WHEN 'ad_end' THEN 'ended' ELSE 'failed' END AS outcome, count(*) AS ads
FROM player_events
WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
  AND event_name IN ('ad_start', 'ad_end', 'ad_error')
  AND ($device IS NULL OR coalesce(device, 'unknown') = $device)
GROUP BY ALL
ORDER BY hour, outcome
