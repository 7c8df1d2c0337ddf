-- Sessions without a price.
SELECT session_date AS session, ticker
FROM missing_sessions
WHERE session_date >= $from::DATE AND session_date < $to
ORDER BY session, ticker
