WITH dimensions AS (
  SELECT DISTINCT cdn, isp, country, device
  FROM qos_minute
  WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
)
SELECT 'cdn' AS filter, coalesce(cdn, 'unknown') AS value FROM dimensions
UNION SELECT 'isp', coalesce(isp, 'unknown') FROM dimensions
UNION SELECT 'country', coalesce(country, 'unknown') FROM dimensions
UNION SELECT 'device', coalesce(device, 'unknown') FROM dimensions
UNION SELECT 'version', coalesce(app_version, 'unknown') FROM views WHERE event_date >= $from::DATE
UNION SELECT 'edge', edge FROM view_delivery WHERE event_date >= $from::DATE
UNION SELECT 'title', coalesce(media_label, media_id) FROM views_now WHERE event_time >= $from AND event_time < $to
