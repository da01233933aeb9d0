"""How files are named and arranged in a dump directory, one package per layout, writer and reader side by side."""
