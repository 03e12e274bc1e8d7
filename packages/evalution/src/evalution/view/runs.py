"""Runs below folders, and their documents: the matrix of scores and the details of one."""

from __future__ import annotations
