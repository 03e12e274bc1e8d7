"""The checks, by group; each is one promise of the contract."""
