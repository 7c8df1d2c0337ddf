-- Providers with the most stalling, among those with at least an hour of play.
SELECT coalesce(isp, 'unknown') AS provider,
  round(100.0 * sum(stalled_ms) / (sum(played_ms) + sum(stalled_ms)), 2) AS "rebuffering, %",
  sum(stalls)::BIGINT AS stalls, round(sum(played_ms) / 3600000, 1) AS "hours played"
FROM qos_minute
WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  AND ($cdn IS NULL OR coalesce(cdn, 'unknown') = $cdn)
  AND ($isp IS NULL OR coalesce(isp, 'unknown') = $isp)
  AND ($country IS NULL OR coalesce(country, 'unknown') = $country)
  AND ($device IS NULL OR coalesce(device, 'unknown') = $device)
GROUP BY isp
HAVING sum(played_ms) >= 3600000
ORDER BY 2 DESC
LIMIT 15
