"""Requests for pages."""

from foveate.web.page import ADMIN, PageRequest


def test_a_link_to_the_same_page_keeps_its_query_and_leaves_out_what_is_empty() -> None:
    request = PageRequest(viewer=ADMIN, query={"find": " a&b ", "page": "3", "which": ""})

    assert request.link(page=4, focus="é") == "?find=a%26b&page=4&focus=%C3%A9"
    assert request.link(find="", page="") == "?"


def test_links_stay_short_however_long_the_query_is() -> None:
    query = {"find": "x" * 100_000, "y" * 100_000: "1", **{f"n{at}": "1" for at in range(10_000)}}
    request = PageRequest(viewer=ADMIN, query=query)

    link = request.link(page=2)

    assert link.startswith(f"?find={'x' * 500}&n0=1")
    assert link.endswith("&page=2")
    assert len(link) < 600
