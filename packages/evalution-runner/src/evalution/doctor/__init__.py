"""Facts about this machine, and the health of each engine on it."""
