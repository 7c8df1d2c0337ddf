-- Ids are case-sensitive. A session can continue past midnight.
WITH delivered AS (
  SELECT sid, min(first_request_at) AS first_request_at, sum(requests) AS requests, sum(starved_requests) AS starved_requests,
    sum(errors_5xx) AS errors_5xx, sum(bytes) AS bytes, sum(seconds) AS seconds, sum(first_byte_ms) AS first_byte_ms,
    sum(first_bytes) AS first_bytes
  FROM cdn_logs__cdn_sessions GROUP BY sid
), first_date AS (
  SELECT sid, cdn, edge, asn, row_number() OVER (PARTITION BY sid ORDER BY first_request_at) AS place
  FROM cdn_logs__cdn_sessions
)
SELECT v.event_date, v.play_id, v.media_id, v.sid, v.device, v.isp, v.started_at, v.is_played, v.startup_ms,
  v.played_ms, v.stalled_ms, v.stalls, v.fatal_errors,
  f.cdn, f.edge, f.asn, d.first_request_at,
  coalesce(d.requests, 0) AS requests,
  coalesce(d.starved_requests, 0) AS starved_requests,
  coalesce(d.errors_5xx, 0) AS errors_5xx,
  coalesce(d.bytes, 0) AS bytes,
  coalesce(d.seconds, 0) AS seconds,
  coalesce(d.first_byte_ms, 0) AS first_byte_ms,
  coalesce(d.first_bytes, 0) AS first_bytes
FROM views v
LEFT JOIN delivered d ON d.sid = v.sid
LEFT JOIN first_date f ON f.sid = v.sid AND f.place = 1
WHERE v.sid IS NOT NULL
