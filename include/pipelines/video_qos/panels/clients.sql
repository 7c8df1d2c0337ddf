-- Each view counts in three rows: its connection, its browser, and its resolution, rounded down to a usual one.
WITH shown AS (
  SELECT *, CASE WHEN height_played_ms = 0 THEN 'unknown' WHEN height_played / height_played_ms >= 1080 THEN '1080 lines or more'
    WHEN height_played / height_played_ms >= 720 THEN '720 lines' ELSE 'below 720 lines' END AS resolution
  FROM views
  WHERE event_date >= $from::DATE AND started_at >= $from AND started_at < $to
  AND ($cdn IS NULL OR coalesce(cdn, 'unknown') = $cdn)
  AND ($isp IS NULL OR coalesce(isp, 'unknown') = $isp)
  AND ($country IS NULL OR coalesce(country, 'unknown') = $country)
  AND ($device IS NULL OR coalesce(device, 'unknown') = $device)
  AND ($version IS NULL OR coalesce(app_version, 'unknown') = $version)
), sorted AS (
  SELECT 'connection' AS dimension, coalesce(connection, 'unknown') AS value, * FROM shown
  UNION ALL BY NAME SELECT 'browser' AS dimension, coalesce(browser, 'unknown') AS value, * FROM shown
  UNION ALL BY NAME SELECT 'resolution' AS dimension, resolution AS value, * FROM shown
)
SELECT dimension, value, count(*) AS views, round(sum(rtt_ms) / nullif(sum(rtts), 0)) AS "round trip, ms",
  round(100 * sum(dropped_frames) / nullif(sum(frames), 0), 2) AS "dropped frames, %",
  round(100 * sum(stalled_ms) / nullif(sum(played_ms) + sum(stalled_ms), 0), 2) AS "rebuffering, %",
  round(100 * count_if(has_problem) / count(*), 1) AS "with a problem, %"
FROM sorted
GROUP BY dimension, value
ORDER BY dimension, views DESC, value
