"""The pages of the console. Each module has a function that returns a view, and a template that shows it."""
