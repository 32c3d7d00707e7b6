"""A running server, as the commands that look at it and steer it reach it."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from typing import Any, NoReturn

from feather_sglang.cli.arguments import DEFAULT_HOST, DEFAULT_PORT
from feather_sglang.cli.errors import UsageError

API_KEY = "FEATHER_API_KEY"


class Remote:
    """A server under ``url``.

    :param api_key: SGLang's ``--api-key`` or ``--admin-api-key``, if it wants one.
    :param option: what the user names it by, for messages.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 10.0, option: str = "--url") -> None:
        self.url = url.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = timeout
        self._option = option

    def server_info(self) -> dict[str, Any]:
        """The answer of ``/server_info``.

        :raises UsageError: if nobody answers, or not like SGLang.
        """
        info = self._ask("/server_info")
        if not isinstance(info, dict) or not isinstance(info.get("internal_states"), list):
            raise UsageError(f"{self.url} does not answer like SGLang; give the {self._option} of its server")
        return info

    def states(self) -> list[dict[str, Any]]:
        """What the policy says of itself, for each data-parallel rank.

        :raises UsageError: if the server has another policy.
        """
        return policy_states(self.server_info(), self.url)

    def change(self, server_args: dict[str, float]) -> list[bool]:
        """Post to ``/set_internal_state``; for each data-parallel rank, whether it was done."""
        answer = self._ask("/set_internal_state", {"server_args": server_args})
        return [bool(done) for done in answer]

    def _ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.url + path, data, self._headers)
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise UsageError(f"{self.url} wants a key; give --api-key KEY, or set {API_KEY}") from None
            raise UsageError(f"{self.url}{path} answers {error.code} {error.reason}; is it SGLang's server?") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UsageError(
                f"no server answers at {self.url} ({reason}); give its address with {self._option}"
            ) from None


def policy_states(info: dict[str, Any], url: str) -> list[dict[str, Any]]:
    """What the policy says of itself in the answer of ``/server_info``, for each data-parallel rank.

    :raises UsageError: if the server has another policy.
    """
    states = [state.get("feather") for state in info["internal_states"]]
    if not states or None in states:
        policy = info.get("schedule_policy", "another policy")
        raise UsageError(f"{url} serves with {policy!r}; expected a server with --schedule-policy feather")
    return states


class Parser(argparse.ArgumentParser):
    """Options of one command; bad ones are one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}: `{self.prog} --help`")


def add_server(parser: argparse.ArgumentParser) -> None:
    """The options that say which server."""
    address = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
    parser.add_argument("--url", default=address, help="of the server; default: %(default)s")
    parser.add_argument(
        "--api-key", default=os.environ.get(API_KEY), help=f"the server's key, if it wants one; default: {API_KEY}"
    )
