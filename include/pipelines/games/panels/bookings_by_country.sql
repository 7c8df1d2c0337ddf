-- Bookings by country, largest first.
SELECT country, sum(bookings) AS bookings
FROM bookings_per_country
WHERE event_date >= $from::DATE AND event_date < $to
GROUP BY country
ORDER BY bookings DESC
