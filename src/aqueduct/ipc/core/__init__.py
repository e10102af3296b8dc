"""The ScalableIPC state machines: pure, with time and randomness as arguments."""
