"""What `opdump replay` prints: each output of the operator, and whether it agrees with the result computed from its inputs."""

from __future__ import annotations

from opdump import amounts
from opdump.records import shown_shape
from opdump.replaying import Distance, Replay, ReplayedOutput


def replay_lines(result: Replay) -> list[str]:
    """The report as lines of text."""
    op = result.op
    code = f"  {op.stack[0].code}" if op.stack and op.stack[0].code else ""
    lines = [f"{op.kernel}  {op.op_name}", f"  {op.place}, {op.line or 'no line'}{code}", ""]
    for output in result.outputs:
        lines += _output(output)
    compared = [output for output in result.outputs if output.agrees is not None]
    if not compared:
        lines.append("NOT COMPARED: the dump has no elements of any output")
    elif result.verdict == "agrees":
        lines.append("AGREES: the recorded outputs follow from the inputs, within rounding")
    else:
        worst = max(compared, key=lambda output: (output.agrees is False, output.distances[-1].roundings))
        lines.append(f"DIFFERS: output.{worst.slot} is off by {_amount(worst.distances[-1].roundings)} roundings")
    return [*lines, *(f"wrote {file}" for file in result.files)]


def _output(output: ReplayedOutput) -> list[str]:
    name = f" {output.argument}" if output.argument else ""
    lines = [f"output.{output.slot}{name}  {output.dtype} {shown_shape(output.shape)}"]
    if output.agrees is None:
        return [*lines, f"  not compared: {output.reason}", ""]
    lines += [f"  {_distance(distance, is_exact=output.allowed == 0)}" for distance in output.distances]
    if output.beyond:
        lines.append(
            f"  {amounts.count(output.beyond, 'element')} infinite, because the float64 result exceeds the range of {output.dtype}"
        )
    if output.allowed:
        lines.append(
            f"  {'within' if output.agrees else 'beyond'} the {_amount(output.allowed)} units allowed for {output.dtype}"
        )
    return [*lines, ""]


def _distance(distance: Distance, *, is_exact: bool) -> str:
    if is_exact:
        how = f"{distance.roundings:,.0f} elements differ"
    else:
        ulps = "" if distance.ulps is None else f", {distance.ulps:,} ULP"
        how = (
            f"max absolute {distance.max_absolute:.4g}, max relative {distance.max_relative:.4g}{ulps}, "
            f"{_amount(distance.roundings)} units of rounding"
        )
    name = "in the recorded types" if distance.dtype == "recorded" else f"in {distance.dtype}"
    return f"replayed {name}: {how}"


def _amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
