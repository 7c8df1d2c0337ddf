-- Fractions of the attempts of each minute that never started, were abandoned before the start, or failed.
SELECT minute, 100 * sum(start_failures) / nullif(sum(attempts), 0) AS "not started",
  100 * sum(exits_before_start) / nullif(sum(attempts), 0) AS "left before it started",
  100 * sum(playback_failures) / nullif(sum(attempts), 0) AS "failed"
FROM qos_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  AND ($cdn IS NULL OR coalesce(cdn, 'unknown') = $cdn)
  AND ($isp IS NULL OR coalesce(isp, 'unknown') = $isp)
  AND ($country IS NULL OR coalesce(country, 'unknown') = $country)
  AND ($device IS NULL OR coalesce(device, 'unknown') = $device)
GROUP BY minute
ORDER BY minute
