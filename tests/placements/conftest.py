from tests.control.conftest import *  # noqa: F403 - Alice, Bob, Charlie and a Valkey that is not there
