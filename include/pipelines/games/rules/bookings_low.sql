-- Bookings of each minute with events, 0 without purchases; the sample count is the number of events.
WITH active AS (
  SELECT minute, coalesce(platform, 'unknown') AS platform, sum(events) AS events
  FROM events_minute
  WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  GROUP BY ALL
), booked AS (
  SELECT minute, coalesce(platform, 'unknown') AS platform, sum(bookings) AS bookings
  FROM bookings_minute
  WHERE event_date >= $from::DATE AND minute >= $from AND minute < $to
  GROUP BY ALL
)
SELECT minute, platform, coalesce(bookings, 0)::DOUBLE AS value, events AS samples
FROM active LEFT JOIN booked USING (minute, platform)
