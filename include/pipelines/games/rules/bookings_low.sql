-- Bookings of each hour with events, 0 without purchases; the sample count is the number of events.
WITH active AS (
  SELECT hour, sum(events) AS events
  FROM events_per_hour
  WHERE event_date >= $from::DATE AND hour >= $from AND hour < $to
  GROUP BY hour
)
SELECT active.hour AS minute, coalesce(bookings, 0)::DOUBLE AS value, active.events AS samples
FROM active LEFT JOIN bookings_per_hour ON bookings_per_hour.hour = active.hour
