SELECT ticker, eps_annual, annual_period_end, annual_filed, eps_twelve_months, twelve_months_end
FROM eps_known WHERE valid_to IS NULL
