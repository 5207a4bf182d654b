"""The example checked by the conformance suite, as any backend would be, for two sizes of its blocks. The certificate is of the
default size in both dtypes."""

from __future__ import annotations

import pytest
import tfkit_example_backend as plugin

from tfkit import load_catalogue
from tfkit_conformance import check_backend


@pytest.mark.exhaustive
@pytest.mark.parametrize(("block", "dtype"), [(64, "bfloat16"), (4, "float32")])
def test_it_is_conformant(block, dtype):
    options = plugin.OnlineOptions(block=block)
    report = check_backend(plugin.ONLINE, options=options, profile="quick", dtypes=[dtype])
    report.raise_for_failures()
    assert report.verdict == "CONFORMANT"


def test_the_hook_offers_the_entry():
    catalogue = load_catalogue(()).with_plugin(plugin, "example")
    assert catalogue.find("backend", "example.online") is plugin.ONLINE
