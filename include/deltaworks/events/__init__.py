"""From payloads to typed columns: framing, routing, conversion, rules and the reasons why a row does not fit."""
