-- One row per hour (UTC) and event type: number of events.
SELECT
  event_date,
  date_trunc('HOUR', event_time) AS hour,
  event_name,
  count(*) AS events
FROM events
GROUP BY event_date, date_trunc('HOUR', event_time), event_name
