-- Bookings by date and country.
SELECT event_date AS date, country, bookings
FROM bookings_per_country
WHERE event_date >= $from::DATE AND event_date < $to
ORDER BY date
