"""Reading again what has landed, with the declaration of now, in place or beside."""
