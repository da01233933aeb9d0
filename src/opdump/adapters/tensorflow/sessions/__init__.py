"""Programs that run a graph in a session."""
