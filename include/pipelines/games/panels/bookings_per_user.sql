-- Bookings per active device, by date.
WITH sold AS (
  SELECT event_date, sum(bookings) AS bookings
  FROM bookings_per_hour
  WHERE event_date >= $from::DATE AND event_date < $to
  GROUP BY event_date
)
SELECT active.event_date AS date, coalesce(sold.bookings, 0) / active.users AS bookings_per_user
FROM daily_active_users AS active
LEFT JOIN sold ON sold.event_date = active.event_date
WHERE active.event_date >= $from::DATE AND active.event_date < $to
ORDER BY date
