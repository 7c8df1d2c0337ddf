-- Bookings and purchases by date.
SELECT event_date AS date, sum(bookings) AS bookings, sum(purchases) AS purchases
FROM bookings_per_hour
WHERE event_date >= $from::DATE AND event_date < $to
GROUP BY date
ORDER BY date
