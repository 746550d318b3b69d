"""How fast, how exact and how frugal ctcbind is beside other CTC losses: `python -m benchmarks --help`."""
