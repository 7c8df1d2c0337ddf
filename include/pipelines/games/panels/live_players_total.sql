SELECT coalesce(sum(active_users), 0)::BIGINT AS players
FROM active_users_now
WHERE newest_event_at >= $from AND newest_event_at < $to
  AND ($country IS NULL OR coalesce(country, 'unknown') = $country)
  AND ($platform IS NULL OR coalesce(platform, 'unknown') = $platform)
