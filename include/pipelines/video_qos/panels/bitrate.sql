-- Bitrate, weighted by played time.
SELECT minute, sum(bitrate_played) / nullif(sum(bitrate_played_ms), 0) AS bitrate_kbps
FROM qos_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  AND ($cdn IS NULL OR coalesce(cdn, 'unknown') = $cdn)
  AND ($isp IS NULL OR coalesce(isp, 'unknown') = $isp)
  AND ($country IS NULL OR coalesce(country, 'unknown') = $country)
  AND ($device IS NULL OR coalesce(device, 'unknown') = $device)
GROUP BY minute
ORDER BY minute
