"""Certificates for ``localhost`` and 127.0.0.1, made with the ``openssl`` command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from localservers.process import Server

__all__ = ["Certificates"]


@dataclass(frozen=True)
class Certificates:
    """Paths of one authority's certificate, and of a server's certificate that it signed.

    Attributes:
        authority: what clients must trust.
        certificate: what the server shows, valid for ``localhost`` and 127.0.0.1.
        key: the server's private key.
    """

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        """Make a new authority and a server certificate, both valid for two days.

        Args:
            folder: where the files go; it must exist.

        Raises:
            MissingServer: there is no ``openssl`` program.
        """
        program = Server.find("openssl", "install the Debian package openssl")
        made = cls(folder / "ca.pem", folder / "server.pem", folder / "server.key")
        new: list[str | Path] = [
            program,
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
        ]
        authority: list[str | Path] = [
            "-keyout",
            folder / "ca.key",
            "-out",
            made.authority,
            "-subj",
            "/CN=test CA",
        ]
        # Python 3.13 and newer insist on what the authority's key is for.
        _run([*new, *authority, "-addext", "keyUsage=critical,keyCertSign,cRLSign"])
        signed: list[str | Path] = [
            "-CA",
            made.authority,
            "-CAkey",
            folder / "ca.key",
            "-subj",
            "/CN=localhost",
        ]
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        leaf = ["-addext", "basicConstraints=critical,CA:FALSE"]
        _run([*new, "-keyout", made.key, "-out", made.certificate, *signed, *names, *leaf])
        made.key.chmod(0o644)  # a server that runs as another user must read it; it is a toy key
        return made


def _run(command: list[str | Path]) -> None:
    subprocess.run(command, check=True, capture_output=True)
