"""Records what every operator of a neural network read and wrote."""
