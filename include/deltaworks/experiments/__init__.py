"""Experiments anyone can run on their own machine or lake: two ways of doing one thing, and what each costs."""
