"""A run from its first check to its folder: the handle, what it keeps on disk, what it found."""
