"""The pages of the console, a module each: a function from what was read to a view, and a template that shows it."""
