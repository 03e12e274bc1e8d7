"""The engine's side of HTTP: requests to a server, and what comes back."""
