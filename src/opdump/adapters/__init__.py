"""What connects a framework to the recorder. A framework is imported below this package and nowhere else."""
