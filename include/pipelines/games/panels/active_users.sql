-- Active devices by date.
SELECT event_date AS date, users
FROM daily_active_users
WHERE event_date >= $from::DATE AND event_date < $to
ORDER BY date
