-- A view has the dimensions of its first event and consists of its first session: a page that is opened again with the same id
-- is another visit. Stalls count after the first frame, unless they follow a seek. A view has a problem if it failed, or if it
-- stalled for more than a twentieth of its time.
WITH ordered AS (
  SELECT *,
    row_number() OVER (PARTITION BY play_id, media_id ORDER BY event_time, event_id) AS place,
    first_value(coalesce(session_id, '')) OVER (PARTITION BY play_id, media_id ORDER BY event_time, event_id) AS first_session
  FROM player_events
), framed AS (
  SELECT *,
    min(CASE WHEN event_name IN ('first_frame', 'play') THEN event_time END) OVER (PARTITION BY play_id, media_id) AS played_at,
    min(CASE WHEN event_name = 'intent' THEN event_time END) OVER (PARTITION BY play_id, media_id) AS intended_at
  FROM ordered
  WHERE coalesce(session_id, '') = first_session
), summed AS (
  SELECT play_id, media_id,
    max(CASE WHEN place = 1 THEN session_id END) AS session_id,
    max(CASE WHEN place = 1 THEN user_id END) AS user_id,
    max(sid) AS sid,
    max(CASE WHEN place = 1 THEN player END) AS player,
    max(CASE WHEN place = 1 THEN cdn END) AS cdn,
    max(CASE WHEN place = 1 THEN device END) AS device,
    max(CASE WHEN place = 1 THEN country END) AS country,
    max(CASE WHEN place = 1 THEN region END) AS region,
    max(CASE WHEN place = 1 THEN asn END) AS asn,
    max(CASE WHEN place = 1 THEN isp END) AS isp,
    max(CASE WHEN place = 1 THEN app_version END) AS app_version,
    max(CASE WHEN place = 1 THEN os END) AS os,
    max(CASE WHEN place = 1 THEN os_version END) AS os_version,
    max(CASE WHEN place = 1 THEN browser END) AS browser,
    max(CASE WHEN place = 1 THEN connection END) AS connection,
    min(event_time) AS started_at,
    max(event_time) AS ended_at,
    min(intended_at) AS intended_at,
    min(played_at) AS played_at,
    coalesce(sum(played_ms), 0) AS played_ms,
    coalesce(sum(played_ms * bitrate_kbps), 0) AS bitrate_played,
    coalesce(sum(CASE WHEN bitrate_kbps IS NOT NULL THEN played_ms END), 0) AS bitrate_played_ms,
    coalesce(sum(CASE WHEN event_name = 'stall' AND event_time >= played_at AND NOT coalesce(after_seek, false)
      THEN stalled_ms END), 0) AS stalled_ms,
    count_if(coalesce(event_name = 'stall' AND event_time >= played_at AND NOT coalesce(after_seek, false), false)) AS stalls,
    coalesce(sum(rtt_ms), 0) AS rtt_ms,
    count(rtt_ms) AS rtts,
    coalesce(sum(played_ms * height), 0) AS height_played,
    coalesce(sum(CASE WHEN height IS NOT NULL THEN played_ms END), 0) AS height_played_ms,
    coalesce(sum(frames), 0) AS frames,
    coalesce(sum(dropped_frames), 0) AS dropped_frames,
    count_if(event_name = 'ad_start') AS ads,
    count_if(event_name = 'ad_error') AS ad_errors,
    coalesce(sum(ad_ms), 0) AS ad_ms,
    count_if(event_name = 'seek') AS seeks,
    count_if(event_name = 'error' AND coalesce(fatal, false)) AS fatal_errors
  FROM framed
  GROUP BY play_id, media_id
)
SELECT CAST(started_at AS DATE) AS event_date, *,
  played_at IS NOT NULL AS is_played,
  intended_at IS NOT NULL OR played_at IS NOT NULL AS is_attempt,
  played_at IS NULL AND intended_at IS NOT NULL AND fatal_errors > 0 AS is_start_failure,
  played_at IS NULL AND intended_at IS NOT NULL AND fatal_errors = 0 AS is_exit_before_start,
  fatal_errors > 0 OR (played_at IS NOT NULL AND 19 * stalled_ms > played_ms) AS has_problem,
  CASE WHEN intended_at IS NOT NULL THEN (unix_micros(played_at) - unix_micros(intended_at)) / 1000 END AS startup_ms
FROM summed
