"""Whole jobs, from their input to a report; each has a command of its own."""
