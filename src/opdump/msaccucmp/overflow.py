"""`msaccucmp overflow`."""
from opdump.msaccucmp.exit_codes import ExitCode


def run_overflow(options) -> ExitCode:
    return ExitCode.OK
