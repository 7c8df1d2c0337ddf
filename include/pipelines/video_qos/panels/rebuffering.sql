-- Stalled time over stalled and played time, by CDN.
SELECT minute, coalesce(cdn, 'unknown') AS cdn, 100.0 * sum(stalled_ms) / nullif(sum(played_ms) + sum(stalled_ms), 0) AS rebuffer_ratio
FROM qos_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  AND ($cdn IS NULL OR coalesce(cdn, 'unknown') = $cdn)
  AND ($isp IS NULL OR coalesce(isp, 'unknown') = $isp)
  AND ($country IS NULL OR coalesce(country, 'unknown') = $country)
  AND ($device IS NULL OR coalesce(device, 'unknown') = $device)
GROUP BY ALL
ORDER BY minute
