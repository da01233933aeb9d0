"""One capture: starts, runs and ends the recording of this process and its children."""
