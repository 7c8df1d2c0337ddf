-- Interpolated percentiles (percentile_cont): nearest-rank percentiles of few requests differ by 10 %.
WITH media_hits AS (
  SELECT event_date, date_trunc('MINUTE', event_time) AS minute, coalesce(cdn, 'cloudfront') AS cdn,
    substring(edge, 1, 3) AS edge, isp, region, country, first_byte_seconds * 1000 AS hit_ms
  FROM requests
  WHERE result IN ('Hit', 'RefreshHit', 'OriginShieldHit') AND first_byte_seconds IS NOT NULL
    AND lower(uri) RLIKE '[.](ts|m4s|m4v|m4a|mp4|aac|cmfv|cmfa|webm)$'
), by_dimension AS (
  SELECT event_date, minute, 'cdn' AS dimension, cdn AS value, hit_ms FROM media_hits
  UNION ALL SELECT event_date, minute, 'edge', edge, hit_ms FROM media_hits
  UNION ALL SELECT event_date, minute, 'isp', isp, hit_ms FROM media_hits
  UNION ALL SELECT event_date, minute, 'region', concat(country, '-', region), hit_ms FROM media_hits
)
SELECT event_date, minute, dimension, value,
  count(*) AS media_hits,
  percentile_cont(0.5) WITHIN GROUP (ORDER BY hit_ms) AS first_byte_ms_p50,
  percentile_cont(0.95) WITHIN GROUP (ORDER BY hit_ms) AS first_byte_ms_p95,
  percentile_cont(0.99) WITHIN GROUP (ORDER BY hit_ms) AS first_byte_ms_p99
FROM by_dimension
WHERE value IS NOT NULL
GROUP BY event_date, minute, dimension, value
