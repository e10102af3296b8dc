"""The protocol without input or output: frames and time in, actions and events out."""
