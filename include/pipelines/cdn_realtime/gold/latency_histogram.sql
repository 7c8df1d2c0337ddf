-- Bucket b contains times from 10^(b/100) to 10^((b+1)/100) ms. Unmeasurably short times are in the bucket of 0.1 ms.
SELECT event_date, date_trunc('MINUTE', event_time) AS minute, substring(edge, 1, 3) AS edge, isp,
  CAST(floor(100 * log10(greatest(first_byte_seconds * 1000, 0.1D))) AS INT) AS bucket,
  count(*) AS media_hits
FROM requests
WHERE result IN ('Hit', 'RefreshHit', 'OriginShieldHit') AND first_byte_seconds IS NOT NULL
  AND lower(uri) RLIKE '[.](ts|m4s|m4v|m4a|mp4|aac|cmfv|cmfa|webm)$'
GROUP BY 1, 2, 3, 4, 5
