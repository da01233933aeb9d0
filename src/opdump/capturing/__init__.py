"""One capture: it starts, runs and ends a recording, of this process and of its children."""
