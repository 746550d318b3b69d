"""Bad and extreme inputs as data, and a runner that gives each a process of its own.

`refused.py`: what cannot be right, with the error it must meet. `values.py`: what is extreme and right, with the value
it must give. `runner.py` runs them on the engines of ctcbind, or on another library (tools/bad_inputs.py).
"""
