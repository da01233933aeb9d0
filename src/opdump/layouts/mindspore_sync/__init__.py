"""MindSpore's synchronous dump: files named by operator, one directory per rank, net, graph and iteration."""
