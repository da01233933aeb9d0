"""What opdump asks of the Python interpreter: imports, modules, processes."""
