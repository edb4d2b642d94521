from core import *  # noqa: F403
from stms_client import *  # noqa: F403
