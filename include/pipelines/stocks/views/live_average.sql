SELECT a.ticker, p.event_date AS newest_date,
  CASE WHEN p.event_date > a.last_date THEN (a.close_sum + p.close)::DOUBLE / (a.sessions + 1) ELSE a.average_close END
    AS average_close
FROM average_close a JOIN latest_price p USING (ticker)
