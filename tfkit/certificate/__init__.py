"""Certificates: files in which an author states what the conformance suite said about a part.

A certificate is a statement, not a signature. Any user can write one; it protects against forgetting, not against lying. It
holds digests of the declaration and the source that the suite ran, so that a later change is seen. Reading one imports neither
torch nor the part.
"""

from .certificate import SUFFIX, Certificate, certificate_of, certificate_text, part_source, read_certificate
from .comparison import Comparison, InstalledCertificate, compare_certificate, installed_certificates

__all__ = [
    "Certificate",
    "Comparison",
    "InstalledCertificate",
    "SUFFIX",
    "certificate_of",
    "certificate_text",
    "compare_certificate",
    "installed_certificates",
    "part_source",
    "read_certificate",
]
