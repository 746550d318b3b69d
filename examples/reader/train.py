"""Trains a network written by hand to read handwritten numbers, and reads images with it: train.py --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the folder that holds `reader`

from reader.command import main

if __name__ == "__main__":
    sys.exit(main())
