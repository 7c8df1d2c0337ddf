-- Fraction of the active views of a minute with a fatal error, by device.
SELECT date_trunc('minute', event_time) AS minute, coalesce(device, 'unknown') AS device,
  count(DISTINCT (play_id, media_id)) FILTER (event_name = 'error' AND fatal) / count(DISTINCT (play_id, media_id)) AS value,
  count(DISTINCT (play_id, media_id)) AS samples
FROM player_events
WHERE event_date >= $from::DATE AND event_time >= $from AND event_time < $to
GROUP BY ALL
