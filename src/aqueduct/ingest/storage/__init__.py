"""What a topic needs below it: append groups, read ranges, recover."""
