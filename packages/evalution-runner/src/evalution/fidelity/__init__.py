"""Distance of a way of serving a model from a reference, position by position."""
