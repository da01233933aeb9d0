"""What opdump needs to know of toyflow."""
