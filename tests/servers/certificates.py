"""A certificate authority and a server certificate for the loopback address, made with openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """The files of one authority and one server."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path, *, expired: bool = False) -> Certificates:
    """New certificates for 127.0.0.1 and localhost, valid for a day, or until the authority was made."""
    authority, authority_key = directory / "ca.crt", directory / "ca.key"
    certificate, key, request = directory / "server.crt", directory / "server.key", directory / "server.csr"
    names = directory / "names.txt"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    # An elliptic key is made at once; an RSA key takes up to a second on a busy machine.
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _openssl(
        "req",
        "-x509",
        *new_key,
        "-days",
        "1",
        "-subj",
        "/CN=Holdfast tests",
        "-keyout",
        authority_key,
        "-out",
        authority,
    )
    _openssl("req", *new_key, "-subj", "/CN=localhost", "-keyout", key, "-out", request)
    signer: list[str | Path] = ["-CA", authority, "-CAkey", authority_key, "-CAcreateserial"]
    days = "-1" if expired else "1"
    _openssl("x509", "-req", "-in", request, *signer, "-days", days, "-extfile", names, "-out", certificate)
    return Certificates(authority, certificate, key)


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"openssl {words[0]}: {done.stderr}"
