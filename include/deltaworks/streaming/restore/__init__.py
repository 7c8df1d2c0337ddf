"""Going back: tables as they were, and what landed since put back under ids of its own or left out."""
