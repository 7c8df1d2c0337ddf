-- CMCD is in the query string, encoded once or, in older logs, twice: sid="…" is the session, bs means that its buffer was
-- empty.
WITH by_player AS (
  SELECT event_date, event_time, event_id, coalesce(cdn, 'cloudfront') AS cdn, substring(edge, 1, 3) AS edge, asn, isp,
    bytes, seconds, first_byte_seconds, coalesce(status, '') AS status,
    regexp_extract(coalesce(query, ''), '(?i)(?:[,&=]|%(?:25)?2C|%(?:25)?3D)sid(?:=|%(?:25)?3D)(?:"|%(?:25)?22)([A-Za-z0-9_-]{1,64})(?:"|%(?:25)?22)', 1) AS sid,
    coalesce(query, '') RLIKE '(?i)(?:CMCD=|CMCD%(?:25)?3D|,|%(?:25)?2C)bs(?:,|%(?:25)?2C|&|$)' AS is_starved
  FROM requests
), first_request AS (
  SELECT *, row_number() OVER (PARTITION BY event_date, sid ORDER BY event_time, event_id) AS place
  FROM by_player WHERE sid <> ''
)
SELECT event_date, sid,
  max(CASE WHEN place = 1 THEN cdn END) AS cdn,
  max(CASE WHEN place = 1 THEN edge END) AS edge,
  max(CASE WHEN place = 1 THEN asn END) AS asn,
  max(CASE WHEN place = 1 THEN isp END) AS isp,
  min(event_time) AS first_request_at,
  count(*) AS requests,
  count_if(is_starved) AS starved_requests,
  count_if(status LIKE '5%') AS errors_5xx,
  coalesce(sum(bytes), 0) AS bytes,
  coalesce(sum(seconds), 0) AS seconds,
  coalesce(sum(first_byte_seconds) * 1000, 0) AS first_byte_ms,
  count(first_byte_seconds) AS first_bytes
FROM first_request
GROUP BY event_date, sid
