"""Key services: who makes, wraps and destroys keys. A module a service, and `opening` for what is declared."""
