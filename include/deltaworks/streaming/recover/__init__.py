"""Finding what storage, people or programs have damaged, and mending it from what is on record."""
