-- A viewer's quality in a play on a date, and when all its events had arrived. A play past midnight counts on both dates.
WITH framed AS (
  SELECT event_date, play_id, media_id, user_id, event_name, event_time, played_ms, stalled_ms, after_seek, fatal, _ingested_at,
    min(CASE WHEN event_name IN ('first_frame', 'play') THEN event_time END)
      OVER (PARTITION BY event_date, play_id, media_id) AS played_at,
    min(CASE WHEN event_name = 'intent' THEN event_time END) OVER (PARTITION BY event_date, play_id, media_id) AS intended_at
  FROM player_events
  WHERE user_id IS NOT NULL
)
SELECT event_date, play_id, media_id,
  min(user_id) AS user_id,
  max(_ingested_at) AS arrived_at,
  coalesce(sum(played_ms), 0) AS played_ms,
  coalesce(sum(CASE WHEN event_name = 'stall' AND event_time >= played_at AND NOT coalesce(after_seek, false)
    THEN stalled_ms END), 0) AS stalled_ms,
  (unix_micros(min(played_at)) - unix_micros(min(intended_at))) / 1000 AS startup_ms,
  min(played_at) IS NOT NULL OR coalesce(sum(played_ms), 0) > 0 AS is_played,
  count_if(event_name = 'error' AND coalesce(fatal, false)) > 0 AS is_failed
FROM framed
GROUP BY event_date, play_id, media_id
