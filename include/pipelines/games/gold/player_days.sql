-- Activity of a device per date and per date of arrival, so that sums can be restricted to events that had arrived by any date.
SELECT event_date, CAST(_ingested_at AS DATE) AS arrived_date, device_id,
  count(*) AS events,
  count_if(event_name = 'session_start') AS sessions,
  count_if(event_name = 'session_end') AS ended_sessions,
  count_if(event_name = 'level_start') AS levels,
  count_if(event_name = 'level_fail') AS failed_levels,
  count_if(event_name = 'purchase') AS purchases
FROM events
GROUP BY event_date, CAST(_ingested_at AS DATE), device_id
