"""`python -m forerun.engines.vllm serve MODEL ...`: vLLM's own `serve`, flag for flag.

The `vllm` command is missing or fails where vLLM was installed under another name, as it is for CPUs.
"""

from __future__ import annotations

from forerun.errors import MissingExtra

try:
    import vllm as _  # noqa: F401
except ModuleNotFoundError as error:
    raise SystemExit(str(MissingExtra("vLLM", "vllm"))) from error

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.logger import configure_logging_from_args
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Read the command line as `vllm` does, and serve."""
    cli_env_setup()
    parser = FlexibleArgumentParser(prog="vllm")
    command = ServeSubcommand()
    command.subparser_init(parser.add_subparsers(dest="subparser", required=True))
    arguments = parser.parse_args()
    configure_logging_from_args(arguments)
    command.validate(arguments)
    command.cmd(arguments)


if __name__ == "__main__":
    main()
