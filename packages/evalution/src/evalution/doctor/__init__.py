"""What this machine has, and whether each engine would work on it."""
