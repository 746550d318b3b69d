"""The kernels of the cuda engine: their sources, how they are compiled and how a batch is laid out for them."""
