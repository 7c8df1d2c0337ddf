-- Only views that the CDN's log names an edge for, by the date and edge of their first request.
SELECT d.event_date, d.edge, coalesce(v.app_version, 'unknown') AS app_version, count(*) AS plays,
  quantile_cont(v.startup_ms, 0.5) AS startup_ms_p50, quantile_cont(v.startup_ms, 0.95) AS startup_ms_p95
FROM view_delivery AS d JOIN views AS v ON v.event_date = d.event_date AND v.play_id = d.play_id AND v.media_id = d.media_id
WHERE v.startup_ms IS NOT NULL AND d.edge IS NOT NULL
GROUP BY ALL
