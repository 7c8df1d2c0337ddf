-- One row per date and event type: number of events and of devices.
SELECT
  event_date,
  event_name,
  count(*) AS events,
  count(DISTINCT device_id) AS devices
FROM events
GROUP BY event_date, event_name
