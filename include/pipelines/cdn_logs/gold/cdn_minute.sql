-- Ratios are sums over sums: rows contain both, so that hours, regions and CDNs can be aggregated. Percentiles cannot be added:
-- these are of the row's own requests; for others see cdn_latency and latency_histogram.
-- Cacheable requests are hits and misses; responses of functions, redirects and rejections are not.
WITH dated AS (
  SELECT
    event_date,
    date_trunc('MINUTE', event_time) AS minute,
    coalesce(cdn, 'cloudfront') AS cdn,
    substring(edge, 1, 3) AS edge,
    asn, isp, country, region,
    coalesce(status, '') AS status, coalesce(result, '') AS result, bytes, seconds,
    coalesce(result, '') IN ('Hit', 'RefreshHit', 'OriginShieldHit') AS is_hit,
    coalesce(result, '') IN ('Hit', 'RefreshHit', 'OriginShieldHit', 'Miss') AS is_cacheable,
    CASE WHEN result IN ('Hit', 'RefreshHit', 'OriginShieldHit')
        AND lower(uri) RLIKE '[.](ts|m4s|m4v|m4a|mp4|aac|cmfv|cmfa|webm)$'
      THEN first_byte_seconds * 1000 END AS hit_ms,
    regexp_extract(coalesce(query, ''), '(?i)(?:[,&=]|%(?:25)?2C|%(?:25)?3D)sid(?:=|%(?:25)?3D)(?:"|%(?:25)?22)([A-Za-z0-9_-]{1,64})(?:"|%(?:25)?22)', 1) AS sid,
    coalesce(query, '') RLIKE '(?i)(?:CMCD=|CMCD%(?:25)?3D|,|%(?:25)?2C)bs(?:,|%(?:25)?2C|&|$)' AS is_starved
  FROM requests
)
SELECT
  event_date, minute, cdn, edge, asn, isp, country, region,
  count(*) AS requests,
  count_if(status NOT IN ('', '000')) AS answered,
  count_if(status LIKE '5%') AS errors_5xx,
  count_if(status LIKE '4%') AS errors_4xx,
  count_if(status = '000' OR (result = 'Error' AND status = '200')) AS clients_left,
  count_if(is_cacheable) AS cacheable,
  count_if(is_hit) AS hits,
  coalesce(sum(CASE WHEN is_cacheable THEN bytes END), 0) AS cacheable_bytes,
  coalesce(sum(CASE WHEN is_hit THEN bytes END), 0) AS hit_bytes,
  coalesce(sum(bytes), 0) AS bytes,
  coalesce(sum(seconds), 0) AS seconds,
  count(hit_ms) AS media_hits,
  percentile_cont(0.5) WITHIN GROUP (ORDER BY hit_ms) AS first_byte_ms_p50,
  percentile_cont(0.95) WITHIN GROUP (ORDER BY hit_ms) AS first_byte_ms_p95,
  percentile_cont(0.99) WITHIN GROUP (ORDER BY hit_ms) AS first_byte_ms_p99,
  count_if(sid <> '') AS player_requests,
  count_if(sid <> '' AND is_starved) AS starved_requests
FROM dated
GROUP BY event_date, minute, cdn, edge, asn, isp, country, region
