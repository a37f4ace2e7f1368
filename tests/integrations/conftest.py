"""The fake agent of the session's tests serves these too."""

from tests.session.conftest import *  # noqa: F403
