-- The current time is that of the newest report, by the collector's clock. A view is active if its last report is within two
-- heartbeats of ten seconds and is neither its end nor a fatal error; a user is active with a report within five minutes.
WITH newest AS (SELECT max(event_time) AS newest_at FROM views_now)
SELECT n.newest_at,
  count(*) FILTER (WHERE v.event_time >= n.newest_at - INTERVAL 20 SECOND AND v.event_name <> 'end' AND NOT coalesce(v.fatal, false)) AS concurrent_viewers,
  count(DISTINCT v.user_id) FILTER (WHERE v.event_time >= n.newest_at - INTERVAL 5 MINUTE) AS active_users
FROM newest AS n JOIN views_now AS v ON true
GROUP BY n.newest_at
