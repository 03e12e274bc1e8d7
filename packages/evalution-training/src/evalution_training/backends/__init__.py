"""The backends that come with this package; each imports its libraries when it prepares."""
