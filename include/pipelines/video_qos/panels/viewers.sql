-- Views that overlap each minute.
SELECT minute, sum(active_views)::BIGINT AS concurrent_viewers
FROM qos_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  AND ($cdn IS NULL OR coalesce(cdn, 'unknown') = $cdn)
  AND ($isp IS NULL OR coalesce(isp, 'unknown') = $isp)
  AND ($country IS NULL OR coalesce(country, 'unknown') = $country)
  AND ($device IS NULL OR coalesce(device, 'unknown') = $device)
GROUP BY minute
ORDER BY minute
