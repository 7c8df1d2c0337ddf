-- By the last 15 minutes: a purchase, three failures since the last completed level, or three levels in a row. An event id counts
-- once. A copy that a device sends again after the window is older by the device's clock than by the server's, and does not count.
WITH recent AS (
  SELECT player_id, event_id, event_time, client_event_time, 'purchase' AS kind
  FROM purchase
  WHERE event_date >= (now() - INTERVAL 15 MINUTES)::DATE AND event_time > now() - INTERVAL 15 MINUTES
  UNION ALL
  SELECT player_id, event_id, event_time, client_event_time, 'completion'
  FROM level_complete
  WHERE event_date >= (now() - INTERVAL 15 MINUTES)::DATE AND event_time > now() - INTERVAL 15 MINUTES
  UNION ALL
  SELECT player_id, event_id, event_time, client_event_time, 'failure'
  FROM level_fail
  WHERE event_date >= (now() - INTERVAL 15 MINUTES)::DATE AND event_time > now() - INTERVAL 15 MINUTES
),
happened AS (
  SELECT player_id, kind, min(event_time) AS event_time
  FROM recent
  WHERE player_id IS NOT NULL AND event_time <= now()
    AND coalesce(client_event_time, event_time) > event_time - INTERVAL 15 MINUTES
  GROUP BY player_id, kind, event_id
),
ordered AS (
  SELECT *, max(event_time) FILTER (kind = 'completion') OVER (PARTITION BY player_id) AS completed_at,
    max(event_time) FILTER (kind = 'failure') OVER (PARTITION BY player_id) AS failed_at
  FROM happened
),
players AS (
  SELECT player_id, count_if(kind = 'purchase') AS purchases, count_if(kind = 'completion') AS completions,
    count_if(kind = 'failure') AS failures,
    count_if(kind = 'failure' AND (completed_at IS NULL OR event_time > completed_at)) AS failures_in_a_row,
    count_if(kind = 'completion' AND (failed_at IS NULL OR event_time > failed_at)) AS completions_in_a_row
  FROM ordered
  GROUP BY player_id
),
segments AS (
  SELECT *,
    CASE
      WHEN purchases > 0 THEN 'buyer'
      WHEN failures_in_a_row >= 3 THEN 'stuck'
      WHEN completions_in_a_row >= 3 THEN 'on_a_roll'
      ELSE 'steady'
    END AS segment
  FROM players
)
SELECT player_id, segment, offer, discount_percent, purchases, completions, failures
FROM segments JOIN segment_offers USING (segment)
