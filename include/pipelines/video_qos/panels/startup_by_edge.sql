SELECT edge, app_version AS version, sum(plays)::BIGINT AS plays, round(max(startup_ms_p50) / 1000, 2) AS "median, s",
  round(max(startup_ms_p95) / 1000, 2) AS "p95, s"
FROM startup_by_edge
WHERE event_date >= $from::DATE AND event_date < $to
  AND ($edge IS NULL OR edge = $edge)
  AND ($version IS NULL OR app_version = $version)
GROUP BY ALL
ORDER BY 5 DESC, edge, version
LIMIT 15
