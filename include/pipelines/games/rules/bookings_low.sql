-- Bookings of an hour in which anybody played, 0 where nobody bought; of how many events, says whether the hour counts.
WITH active AS (
  SELECT hour, sum(events) AS events
  FROM events_per_hour
  WHERE event_date >= $from::DATE AND hour >= $from AND hour < $to
  GROUP BY hour
)
SELECT active.hour AS minute, coalesce(bookings, 0)::DOUBLE AS value, active.events AS samples
FROM active LEFT JOIN bookings_per_hour ON bookings_per_hour.hour = active.hour
