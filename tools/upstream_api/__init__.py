"""Holds what an engine package says about its runtime against that runtime's source."""
