-- A fact is known from the session after its filing. Annual earnings are those of the newest period, in its newest filing;
-- twelve months are the newest four consecutive quarters, on the share basis of the start of the interval.
WITH calendar AS (
  SELECT session_date, lag(session_date) OVER (ORDER BY session_date) AS session_before FROM sessions
), facts AS (
  SELECT f.ticker, f.kind, f.filed, f.accession, f.period_start, f.period_end, f.eps, f.known_late_days,
    coalesce(c.session_date, CAST(date_add(f.filed, 1) AS DATE)) AS available_on
  FROM filings__eps_facts f
  LEFT JOIN calendar c ON f.filed >= c.session_before AND f.filed < c.session_date
), points AS (
  SELECT DISTINCT ticker, available_on AS valid_from FROM facts WHERE kind <> 'other'
), annual AS (
  SELECT p.ticker, p.valid_from, f.available_on, f.period_end, f.filed, f.eps, f.known_late_days,
    row_number() OVER (PARTITION BY p.ticker, p.valid_from ORDER BY f.period_end DESC, f.filed DESC, f.accession DESC) AS place
  FROM points p JOIN facts f ON f.ticker = p.ticker AND f.available_on <= p.valid_from
  WHERE f.kind = 'annual'
), quarters AS (
  SELECT p.ticker, p.valid_from, f.available_on, f.period_start, f.period_end, f.filed, f.accession, f.eps,
    row_number() OVER (PARTITION BY p.ticker, p.valid_from, f.period_end ORDER BY f.filed DESC, f.accession DESC) AS place
  FROM points p JOIN facts f ON f.ticker = p.ticker AND f.available_on <= p.valid_from
  WHERE f.kind = 'quarter'
), based AS (
  SELECT q.ticker, q.valid_from, q.period_start, q.period_end, q.filed,
    CAST(q.eps AS DOUBLE) / coalesce(exp(sum(ln(CAST(s.ratio AS DOUBLE)))), 1) AS eps
  FROM quarters q
  LEFT JOIN splits s ON s.ticker = q.ticker AND s.ex_date >= q.available_on AND s.ex_date < q.valid_from
  WHERE q.place = 1
  GROUP BY q.ticker, q.valid_from, q.period_start, q.period_end, q.filed, q.eps
), fours AS (
  SELECT ticker, valid_from, period_end,
    sum(eps) OVER four AS eps,
    min(period_start) OVER four AS first_day,
    max(filed) OVER four AS filed,
    count(*) OVER four AS quarters
  FROM based
  WINDOW four AS (PARTITION BY ticker, valid_from ORDER BY period_end ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)
), twelve AS (
  SELECT *, row_number() OVER (PARTITION BY ticker, valid_from ORDER BY period_end DESC) AS place
  FROM fours WHERE quarters = 4 AND datediff(period_end, first_day) + 1 BETWEEN 350 AND 380
)
SELECT p.ticker, p.valid_from,
  lead(p.valid_from) OVER (PARTITION BY p.ticker ORDER BY p.valid_from) AS valid_to,
  year(p.valid_from) AS valid_year,
  a.eps AS eps_annual, a.period_end AS annual_period_end, a.filed AS annual_filed, a.available_on AS annual_available_on,
  a.known_late_days,
  t.eps AS eps_twelve_months, t.period_end AS twelve_months_end, t.filed AS twelve_months_filed
FROM points p
LEFT JOIN annual a ON a.ticker = p.ticker AND a.valid_from = p.valid_from AND a.place = 1
LEFT JOIN twelve t ON t.ticker = p.ticker AND t.valid_from = p.valid_from AND t.place = 1
