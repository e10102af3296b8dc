"""The Spark sink: writes rows exactly once."""
