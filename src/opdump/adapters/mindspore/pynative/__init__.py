"""What MindSpore runs operator by operator, in PyNative mode: seen through its dispatch mode, and through the nodes of its autograd."""
