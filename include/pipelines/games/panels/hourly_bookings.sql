-- Bookings of each hour with purchases.
SELECT bookings
FROM bookings_per_hour
WHERE event_date >= $from::DATE AND hour >= $from AND hour < $to
