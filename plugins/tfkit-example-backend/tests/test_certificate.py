"""The certificate that the distribution ships is of the source as it is now."""

from __future__ import annotations

import tfkit_example_backend as plugin

from tfkit import load_catalogue
from tfkit.inspection import compare_certificate, read_certificate
from tfkit_conformance.report import SUITE

FILE = plugin.__file__.replace("__init__.py", "example.online.certificate.json")


def test_it_is_of_this_source_and_declaration():
    changed = compare_certificate(read_certificate(FILE), load_catalogue(), SUITE).changed
    assert not changed, f"renew it: tfkit conformance example.online --profile quick --certificate {FILE}"
