"""The line of the user's own code that runs now; none where only libraries and our own code are at work."""

from __future__ import annotations

from stayfinite.replay.sites import USER, Site, kind_of_file, user_site


def line_of_user() -> Site | None:
    """The nearest line that is neither a library's nor ours."""
    site = user_site(2)
    return site if site is not None and kind_of_file(site.file) == USER else None
