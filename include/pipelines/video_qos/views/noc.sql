-- Percentiles cannot be added: those of all views of a minute come from startup_histogram, those of a row from qos_minute.
SELECT minute,
  sum(active_views)::BIGINT AS concurrent_viewers,
  sum(attempts)::BIGINT AS attempts,
  sum(plays)::BIGINT AS plays,
  sum(start_failures) / nullif(sum(attempts), 0) AS start_failure_rate,
  sum(exits_before_start) / nullif(sum(attempts), 0) AS exit_rate,
  sum(playback_failures) / nullif(sum(attempts), 0) AS playback_failure_rate,
  sum(stalled_ms) / nullif(sum(played_ms) + sum(stalled_ms), 0) AS rebuffer_ratio,
  sum(stalls) * 60000 / nullif(sum(played_ms), 0) AS stalls_per_minute_played,
  sum(bitrate_played) / nullif(sum(bitrate_played_ms), 0) AS bitrate_kbps
FROM qos_minute
GROUP BY minute
