"""Where a pod's intake is: a URL is taken apart as urllib does it."""

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.pod_intake import parts_of

urls = st.from_regex(
    r"(https?|HTTP|ftp|)(://)?[a-zA-Z0-9.@:-]{0,9}(:[0-9]{0,6})?(/[a-zA-Z0-9._/%?#-]{0,6})?", fullmatch=True
)
plain = st.from_regex(r"https?://[a-z0-9.-]+(:[0-9]{1,6})?(/[a-zA-Z0-9._-]*)*", fullmatch=True)


@given(urls | plain | st.text(max_size=12))
@pytest.mark.parametrize("before", ["", "http://"])
def test_as_urllib_does_it(before: str, url: str) -> None:
    try:
        split = urlsplit(before + url)
        expected = (split.scheme, split.hostname or "", split.port, split.path)
    except ValueError:
        with pytest.raises(ValueError):  # noqa: PT011 - whatever urllib says
            parts_of(before + url)
    else:
        assert parts_of(before + url) == expected


def test_the_ones_of_a_cluster() -> None:
    assert parts_of("http://cellwise-intake.cellwise.svc:8080") == ("http", "cellwise-intake.cellwise.svc", 8080, "")
    assert parts_of("https://[::1]:8443/cells/") == ("https", "::1", 8443, "/cells/")
    assert parts_of("http://10.0.0.1:0") == ("http", "10.0.0.1", 0, "")
