"""`python -m forerun.engines.vllm serve MODEL ...`: vLLM's own `serve`, flag for flag.

The `vllm` command is missing or fails where vLLM was installed under another name, as it is for CPUs.
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
from forerun.engines.vllm.launch import cores, settings_of
from forerun.engines.vllm.shared_counters import INSTANCE


def main() -> None:
    """Read the command line as `vllm` does, and serve."""
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
    """Exit with one line if `--additional-config` has settings of ours that no engine could start with."""
    try:
        check_known(settings_of(arguments))
    except ForerunError as error:
        raise SystemExit(f"--additional-config: {error}") from error


def _share_with_processes() -> None:
    """Set what all processes of this server must agree on: its instance, and the cores it may use.

    Workers are bound to some of the cores, and would name their step costs differently from the scheduler.
    """
    os.environ[INSTANCE] = uuid4().hex
    cores()


if __name__ == "__main__":
    main()
