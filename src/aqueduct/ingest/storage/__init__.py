"""Storage backends: append groups, read ranges, recover."""
