"""Virtual environments for locks that need other versions of redis-py than ours."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
PINNED = {"redlock-ng": "redlock-ng==2.0.4", "pottery": "pottery==3.0.1"}


class NoEnvironment(Exception):
    """A package could not be installed; the message says what pip said."""


def python_with(package: str) -> Path:
    """The Python of an environment that has the package; made at the first use.

    Raises:
        NoEnvironment: it could not be installed.
    """
    folder = HERE / f".venv-{package}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists() or done.read_text() != PINNED[package]:
        venv.create(folder, clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", PINNED[package]]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise NoEnvironment(f"pip could not install {PINNED[package]}:\n{answer.stderr}")
        done.write_text(PINNED[package])
    return python


def our_python() -> Path:
    """The Python that runs this."""
    return Path(sys.executable)
