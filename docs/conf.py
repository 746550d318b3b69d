"""The site, made by `sphinx-build -W -b html docs build/html` where ".[docs]" is installed. It needs no network."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent / "tools")]

import ctcbind  # noqa: E402

project = "ctcbind"
author = "the authors of ctcbind"
copyright = author
version = release = ctcbind.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "site_docstrings", "site_pages"]
exclude_patterns = ["_extensions", "gpu/*/**"]  # what runs on a GPU have recorded is no page
smartquotes = False  # "label_mean" is a string that people copy

myst_heading_anchors = 4
nitpicky = False  # docstrings name types of NumPy and cffi, whose pages would have to be fetched

autodoc_mock_imports = ["torch", "jax"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # arrays are of any kind, Any to the type checker; the tables of shapes say more
maximum_signature_line_length = 80
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"ctcbind {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "tango"  # more contrast on grey than the default
