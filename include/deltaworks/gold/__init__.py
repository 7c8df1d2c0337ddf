"""Gold tables: answers built by SQL, rebuilt where their inputs changed, duplicates removed."""
