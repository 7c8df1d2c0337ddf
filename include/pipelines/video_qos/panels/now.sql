-- Views active within the last two heartbeats, as in viewers_now.
WITH newest AS (SELECT max(event_time) AS newest_at FROM views_now WHERE event_time >= $from AND event_time < $to)
SELECT count(*) AS viewers
FROM views_now JOIN newest ON event_time >= newest_at - INTERVAL 20 SECOND AND event_time <= newest_at
WHERE event_name <> 'end' AND NOT coalesce(fatal, false)
  AND ($cdn IS NULL OR coalesce(cdn, 'unknown') = $cdn)
  AND ($isp IS NULL OR coalesce(isp, 'unknown') = $isp)
  AND ($country IS NULL OR coalesce(country, 'unknown') = $country)
  AND ($device IS NULL OR coalesce(device, 'unknown') = $device)
  AND ($title IS NULL OR coalesce(media_label, media_id) = $title)
