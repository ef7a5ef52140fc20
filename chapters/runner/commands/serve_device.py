"""`python -m chapters serve-device`: another machine runs its kernels on this machine's GPU, through TVM's RPC."""

from __future__ import annotations

import importlib

from chapters.runner.course import CourseError
from chapters.runner.on_device import port

HELP = "let another machine use this machine's GPU, through TVM's RPC"


def arguments(parser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at; 127.0.0.1 if not given"
    )
    parser.add_argument("--port", type=port, default=9090, help="9090 if not given")
    parser.add_argument(
        "--key", default="", help="a name that callers must give; none if not given"
    )
    parser.add_argument(
        "--tracker", metavar="HOST:PORT", default="", help="register with a tracker"
    )


def run(options) -> int:
    """Serve until Ctrl-C."""
    server = importlib.import_module("chapters.kit.devices.serve")
    try:
        return server.serve(options.host, options.port, options.key, options.tracker)
    except server.CannotServe as reason:
        raise CourseError(str(reason)) from None
