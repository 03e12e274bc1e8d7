"""How a run tells that it goes on."""

from evalution.progress.reports import PlainProgress, Progress, Running, Silence

__all__ = ["PlainProgress", "Progress", "Running", "Silence"]
