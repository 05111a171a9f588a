"""One file for each step, the oldest first."""
