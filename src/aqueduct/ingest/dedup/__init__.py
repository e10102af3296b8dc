"""Exactly-once writes of jobs: which rows of a replayed step are stored already."""
