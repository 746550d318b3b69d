"""Hands the three FFIs of build_ffi.py to setuptools; everything else stands in pyproject.toml."""

from setuptools import setup

setup(
    cffi_modules=["build_ffi.py:native", "build_ffi.py:cudnn", "build_ffi.py:warpctc"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
