-- Media by active views, most popular first.
SELECT coalesce(media_label, media_id) AS medium, concurrent_viewers AS viewers
FROM most_popular_now
WHERE newest_at >= $from AND newest_at < $to
ORDER BY viewers DESC, medium
LIMIT 15
