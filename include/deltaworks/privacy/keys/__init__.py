"""Key services: one module per service, and `stored_keys` for wrapped keys in object stores."""
