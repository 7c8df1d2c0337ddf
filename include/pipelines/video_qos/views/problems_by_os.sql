-- Viewers without an id count once per session.
SELECT event_date, coalesce(device, 'unknown') AS device, coalesce(os, 'unknown') AS os,
  coalesce(os_version, 'unknown') AS os_version, coalesce(app_version, 'unknown') AS app_version,
  count(DISTINCT coalesce(user_id, session_id, play_id)) AS viewers,
  count(DISTINCT coalesce(user_id, session_id, play_id)) FILTER (has_problem) AS problem_viewers
FROM views
GROUP BY ALL
