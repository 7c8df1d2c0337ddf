-- Active views as in viewers_now.
WITH newest AS (SELECT max(event_time) AS newest_at FROM views_now)
SELECT n.newest_at, v.media_id, max(v.media_label) AS media_label, count(*) AS concurrent_viewers
FROM newest AS n JOIN views_now AS v ON v.event_time >= n.newest_at - INTERVAL 20 SECOND
WHERE v.event_name <> 'end' AND NOT coalesce(v.fatal, false)
GROUP BY n.newest_at, v.media_id
ORDER BY concurrent_viewers DESC, v.media_id
