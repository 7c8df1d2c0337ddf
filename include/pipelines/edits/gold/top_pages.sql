-- One row per date (UTC) and page for its hundred most edited pages, the most edited one ranked 1; pages with equally
-- many edits are ranked by their names.
WITH pages AS (
  SELECT event_date, page, count(*) AS edits
  FROM edits
  GROUP BY event_date, page
),
ranked AS (
  SELECT event_date, page, edits, row_number() OVER (PARTITION BY event_date ORDER BY edits DESC, page) AS rank
  FROM pages
)
SELECT event_date, page, edits, rank
FROM ranked
WHERE rank <= 100
