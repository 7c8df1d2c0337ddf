-- Requests of an edge per minute and per minute of arrival, so that sums can be restricted to data that had arrived by any time.
-- All columns are additive. `seconds` divided by the length of a time range is the average number of concurrent requests.
SELECT
  event_date,
  date_trunc('MINUTE', event_time) AS minute,
  date_trunc('MINUTE', _ingested_at + INTERVAL '59.999999' SECOND) AS arrived_at,
  coalesce(cdn, 'cloudfront') AS cdn,
  substring(edge, 1, 3) AS edge,
  count(*) AS requests,
  count_if(coalesce(status, '') NOT IN ('', '000')) AS answered,
  count_if(status LIKE '5%') AS errors,
  count_if(result IN ('Hit', 'RefreshHit', 'OriginShieldHit', 'Miss')) AS cacheable,
  count_if(result IN ('Hit', 'RefreshHit', 'OriginShieldHit')) AS hits,
  count(CASE WHEN result IN ('Hit', 'RefreshHit', 'OriginShieldHit') THEN first_byte_seconds END) AS timed_hits,
  coalesce(sum(CASE WHEN result IN ('Hit', 'RefreshHit', 'OriginShieldHit') THEN first_byte_seconds * 1000 END), 0) AS first_byte_ms,
  coalesce(sum(seconds), 0) AS seconds
FROM requests
GROUP BY event_date, date_trunc('MINUTE', event_time),
  date_trunc('MINUTE', _ingested_at + INTERVAL '59.999999' SECOND), coalesce(cdn, 'cloudfront'), substring(edge, 1, 3)
