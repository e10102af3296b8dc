"""The Spark sink: writes rows exactly once, also when tasks and batches are retried."""
