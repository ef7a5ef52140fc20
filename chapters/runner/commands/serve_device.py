"""`python -m chapters serve-device`: another machine runs its kernels on this machine's GPU, through TVM's RPC."""

from __future__ import annotations

import argparse
import importlib

from chapters.runner.course import CourseError

HELP = "let another machine use this machine's GPU, through TVM's RPC"


def arguments(parser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at; 127.0.0.1 if not given"
    )
    parser.add_argument("--port", type=_parse_port, default=9090, help="9090 if not given")
    parser.add_argument(
        "--key", default="", help="a name that callers must give; none if not given"
    )


def _parse_port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, a number from 1 to 65535")
    return int(text)


def run(options) -> int:
    """Serve until Ctrl-C."""
    server = importlib.import_module("chapters.kit.measure.rpc_server")
    try:
        return server.serve(options.host, options.port, options.key)
    except server.CannotServe as reason:
        raise CourseError(str(reason)) from None
