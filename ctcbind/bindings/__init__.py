"""The C line: the only place that imports cffi. Ints, pointers, status codes and C names; no arrays of any kind."""
