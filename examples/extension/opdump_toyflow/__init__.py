"""An extension of opdump for the framework toyflow."""
