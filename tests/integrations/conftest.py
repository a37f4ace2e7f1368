"""The fake agent of the session's tests serves these too."""

from tests.session.conftest import *  # noqa: F403
from tests.storage.conftest import moto_endpoint, objects  # noqa: F401
