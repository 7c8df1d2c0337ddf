"""The SQL server: Arrow Flight SQL over the lake's tables and views, read-only, with users, roles and limits."""
