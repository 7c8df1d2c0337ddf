-- Who is there, seconds after players have said so.
SELECT strftime(at, '%Y-%m-%d %H:%M:%S') AS "newest report", concurrent_viewers AS "concurrent viewers", active_users AS "active users"
FROM viewers_now
WHERE at >= $from AND at < $to
