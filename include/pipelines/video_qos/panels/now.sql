-- Current viewers, within seconds.
SELECT strftime(newest_at, '%Y-%m-%d %H:%M:%S') AS "newest report", concurrent_viewers AS "concurrent viewers", active_users AS "active users"
FROM viewers_now
WHERE newest_at >= $from AND newest_at < $to
