"""Trains a PyTorch network to read lines of text, and reads images with it: train.py --help."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the folder that holds `lines` and `reader`


def main() -> int:
    """Runs the command, or says what has to be installed first."""
    missing = [name for name in ("torch", "matplotlib", "PIL", "tqdm") if find_spec(name) is None]
    if missing:
        print(
            f"train.py: {' and '.join(missing)} cannot be found: pip install '.[examples]' torch==2.13.0",
            file=sys.stderr,
        )
        return 2
    from lines.command import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
