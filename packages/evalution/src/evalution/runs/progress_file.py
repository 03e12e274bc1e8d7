"""The file `progress.json` of a run folder, which says how far a running run is."""
