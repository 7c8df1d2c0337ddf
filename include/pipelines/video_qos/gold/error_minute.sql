SELECT event_date, date_trunc('MINUTE', event_time) AS minute,
  CASE WHEN lower(error_class) IN ('network', 'decode', 'drm', 'manifest') THEN lower(error_class) ELSE 'other' END AS error_class,
  cdn, isp, device,
  count(*) AS errors,
  count_if(coalesce(fatal, false)) AS fatal_errors,
  count(DISTINCT concat(play_id, ' ', media_id)) AS views
FROM player_events
WHERE event_name = 'error'
GROUP BY 1, 2, 3, 4, 5, 6
