"""Runs as the pages show them: documents of runs, samples and comparisons, and their server."""
