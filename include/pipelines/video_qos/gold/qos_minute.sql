-- Played and stalled time counts in the minute of its report; attempts and their outcome count in the minute in which the view
-- became an attempt; a view counts in every minute that it overlaps.
WITH meeting AS (
  SELECT explode(sequence(date_trunc('MINUTE', started_at), date_trunc('MINUTE', ended_at), INTERVAL 1 MINUTE)) AS minute,
    cdn, isp, country, region, device
  FROM views
), there AS (
  SELECT minute, cdn, isp, country, region, device, count(*) AS active_views
  FROM meeting GROUP BY minute, cdn, isp, country, region, device
), begun AS (
  SELECT date_trunc('MINUTE', coalesce(intended_at, played_at)) AS minute, cdn, isp, country, region, device,
    count(*) AS attempts,
    count_if(is_played) AS plays,
    count_if(is_start_failure) AS start_failures,
    count_if(is_exit_before_start) AS exits_before_start,
    count_if(fatal_errors > 0) AS playback_failures,
    count(startup_ms) AS startups,
    coalesce(sum(startup_ms), 0) AS startup_ms,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY startup_ms) AS startup_ms_p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY startup_ms) AS startup_ms_p95
  FROM views WHERE is_attempt
  GROUP BY 1, cdn, isp, country, region, device
), reported AS (
  SELECT date_trunc('MINUTE', e.event_time) AS minute, v.cdn, v.isp, v.country, v.region, v.device,
    coalesce(sum(e.played_ms), 0) AS played_ms,
    coalesce(sum(e.played_ms * e.bitrate_kbps), 0) AS bitrate_played,
    coalesce(sum(CASE WHEN e.bitrate_kbps IS NOT NULL THEN e.played_ms END), 0) AS bitrate_played_ms,
    coalesce(sum(CASE WHEN e.event_name = 'stall' AND e.event_time >= v.played_at AND NOT coalesce(e.after_seek, false)
      THEN e.stalled_ms END), 0) AS stalled_ms,
    count_if(coalesce(e.event_name = 'stall' AND e.event_time >= v.played_at AND NOT coalesce(e.after_seek, false), false)) AS stalls
  FROM player_events e JOIN views v
    ON v.play_id = e.play_id AND v.media_id = e.media_id AND coalesce(v.session_id, '') = coalesce(e.session_id, '')
  GROUP BY 1, v.cdn, v.isp, v.country, v.region, v.device
)
SELECT CAST(t.minute AS DATE) AS event_date, t.minute, t.cdn, t.isp, t.country, t.region, t.device,
  t.active_views,
  coalesce(b.attempts, 0) AS attempts,
  coalesce(b.plays, 0) AS plays,
  coalesce(b.start_failures, 0) AS start_failures,
  coalesce(b.exits_before_start, 0) AS exits_before_start,
  coalesce(b.playback_failures, 0) AS playback_failures,
  coalesce(b.startups, 0) AS startups,
  coalesce(b.startup_ms, 0) AS startup_ms,
  b.startup_ms_p50,
  b.startup_ms_p95,
  coalesce(r.played_ms, 0) AS played_ms,
  coalesce(r.bitrate_played, 0) AS bitrate_played,
  coalesce(r.bitrate_played_ms, 0) AS bitrate_played_ms,
  coalesce(r.stalled_ms, 0) AS stalled_ms,
  coalesce(r.stalls, 0) AS stalls
FROM there t
LEFT JOIN begun b ON b.minute = t.minute AND b.cdn <=> t.cdn AND b.isp <=> t.isp AND b.country <=> t.country
  AND b.region <=> t.region AND b.device <=> t.device
LEFT JOIN reported r ON r.minute = t.minute AND r.cdn <=> t.cdn AND r.isp <=> t.isp AND r.country <=> t.country
  AND r.region <=> t.region AND r.device <=> t.device
