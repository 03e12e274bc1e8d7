"""GPTQModel engine for Evalution. Holds the packaging only: there is no engine here yet."""
