-- One row per date (UTC) and page for the hundred most edited pages, ranked from 1; ties are ranked by name.
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
