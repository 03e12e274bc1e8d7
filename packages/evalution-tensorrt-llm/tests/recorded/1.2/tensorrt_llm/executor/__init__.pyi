# A package; what it exports isn't used.
