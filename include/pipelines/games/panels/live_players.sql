-- Devices with an event in the five minutes before the newest event, as in active_users_now.
SELECT coalesce(country, 'unknown') AS country, coalesce(platform, 'unknown') AS platform, sum(active_users)::BIGINT AS players
FROM active_users_now
WHERE newest_event_at >= $from AND newest_event_at < $to
  AND ($country IS NULL OR coalesce(country, 'unknown') = $country)
  AND ($platform IS NULL OR coalesce(platform, 'unknown') = $platform)
GROUP BY ALL
ORDER BY players DESC, country, platform
