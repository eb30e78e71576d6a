"""Runs the TPU's compiler in a separate process: `python -m tools.tpu_check.compiler`.

JAX drives the compiler, libtpu. A separate process is needed because libtpu cannot be loaded together with TensorFlow's
TPU build. The module uses private interfaces of JAX, whose version is pinned.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from official_bert.errors import UserError
from tools.tpu_check.answers import Compiled, Refused, parse_collectives, parse_refusal

# Do not search for a TPU, and allow several compilers to run at the same time.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """The step of one replica, lowered to HLO.

    Attributes:
        hlo: The serialized HLO module.
        variables: Indices of the arguments that are values of variables.
        first_result: Index of the result that is the first variable's new value. The others follow.
    """

    hlo: bytes
    variables: range
    first_result: int


def count_replicas(topology: str) -> int:
    """Returns the number of replicas that a TPU topology has.

    Raises:
        UserError: If the topology does not exist.
    """
    return int(_ask(topology)["replicas"])


class OutOfTimeError(Exception):
    """The compiler took longer than its time limit."""


def compile_step(step: LoweredStep, topology: str, fast: bool, seconds: float | None = None) -> Compiled | Refused:
    """Compiles a step for all cores of a TPU topology.

    Args:
        step: The step of one replica.
        topology: Kind and layout of the TPU, such as v5e:2x4.
        fast: Whether the compiler optimizes less, to save time. The step may then need slightly more memory.
        seconds: Time limit. No limit if None.

    Raises:
        OutOfTimeError: If the time limit is exceeded.
        UserError: If the topology does not exist, or the compiler crashes.
        RuntimeError: If the compiler fails for a reason other than memory, or returns nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "step.hlo")
        with open(path, "wb") as writer:
            writer.write(step.hlo)
        variables = f"--variables={step.variables.start},{step.variables.stop},{step.first_result}"
        answer = _ask(topology, path, variables, *(["--fast"] if fast else []), seconds=seconds)
    if "refused" in answer:
        return Refused(**answer["refused"])
    answer["collectives"] = [tuple(entry) for entry in answer["collectives"]]
    return Compiled(**answer)


def _ask(topology: str, *arguments: str, seconds: float | None = None) -> dict[str, Any]:
    environment = {**os.environ, **_ENVIRONMENT}
    environment.pop("TPU_LIBRARY_PATH", None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tools.tpu_check.compiler", topology, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise OutOfTimeError from error
    lines = done.stdout.strip().splitlines()
    if done.returncode < 0:
        raise UserError(
            f"the compiler crashed for --topology={topology} (signal {-done.returncode}), so the result is unknown; "
            "try another topology, or remove --gradient_accumulation_steps or --rematerialize"
        )
    if done.returncode or not lines:
        raise RuntimeError(f"the compiler's process ended with code {done.returncode}:\n{done.stderr[-4000:]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        raise UserError(f"--topology is {topology!r}: {answer['error']}; expected a kind and a layout, such as v5e:2x4")
    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("topology")
    parser.add_argument("hlo", nargs="?")
    parser.add_argument("--variables")
    parser.add_argument("--fast", action="store_true")
    arguments = parser.parse_args()
    import jax
    from jax.experimental import topologies

    try:
        topology = topologies.get_topology_desc(arguments.topology, "tpu", **_host_bounds(arguments.topology))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        print(json.dumps({"error": str(error).splitlines()[0]}))
        return
    devices = list(topology.devices)
    if not arguments.hlo:
        print(json.dumps({"replicas": len(devices)}))
        return
    first, end, result = map(int, arguments.variables.split(","))
    try:
        answer = _compile(arguments.hlo, devices, range(first, end), result, arguments.fast)
    except jax.errors.JaxRuntimeError as error:
        refused = parse_refusal(str(error))
        if refused is None:
            raise
        print(json.dumps({"refused": dataclasses.asdict(refused)}))
    else:
        print(json.dumps(dataclasses.asdict(answer)))


def _host_bounds(topology: str) -> dict[str, Any]:
    """Returns the compiler option with the layout of a host's chips, if a host has fewer than four, the default."""
    sizes = [int(size) for size in topology.partition(":")[2].split("x") if size.isdigit()]
    return {"chips_per_host_bounds": [*sizes, 1, 1][:3]} if 1 in sizes[:2] else {}


def _compile(path: str, devices: list[Any], variables: range, first_result: int, fast: bool) -> Compiled:
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jax._src.lib.mlir import ir

    with open(path, "rb") as reader, mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(reader.read()))
        _drop_copies(module.operation)
        _alias_variables(module, variables, first_result)
        # Data parallelism: one partition per replica.
        options = compiler.get_compile_options(
            num_replicas=len(devices), num_partitions=1, device_assignment=np.array([[device.id] for device in devices])
        )
        if fast:
            options.executable_build_options.exec_time_optimization_effort = -1.0
            options.executable_build_options.memory_fitting_effort = -1.0
        compiled = devices[0].client.compile(module, _jax.DeviceList(tuple(devices)), options)
    costs, memory = compiled.cost_analysis(), compiled.get_compiled_memory_stats()
    costs = costs[0] if isinstance(costs, list) else costs
    return Compiled(
        device=devices[0].device_kind,
        flops=costs["flops"],
        peak_bytes=memory.peak_memory_in_bytes,
        variable_bytes=memory.alias_size_in_bytes,
        collectives=parse_collectives(compiled.hlo_modules()[0].to_string()),
    )


def _drop_copies(operation: Any) -> None:
    """Removes the operation mhlo.copy, which has no effect and does not exist in StableHLO."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                _drop_copies(inner.operation)
                if inner.operation.name == "mhlo.copy":
                    inner.operation.results[0].replace_all_uses_with(inner.operation.operands[0])
                    inner.operation.erase()


def _alias_variables(module: Any, variables: range, first_result: int) -> None:
    """Makes each variable's new value reuse the memory of the old one, as in training.

    Args:
        module: The StableHLO module.
        variables: Indices of the arguments that are values of variables.
        first_result: Index of the result that is the first variable's new value.
    """
    from jax._src.lib.mlir import ir

    (function,) = (
        operation
        for operation in module.body.operations
        if operation.operation.name == "func.func" and ir.StringAttr(operation.attributes["sym_name"]).value == "main"
    )
    attributes = list(function.arg_attrs)
    for number, argument in enumerate(variables):
        result = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), first_result + number)
        kept = {entry.name: entry.attr for entry in attributes[argument]}
        attributes[argument] = ir.DictAttr.get({**kept, "tf.aliasing_output": result})
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


if __name__ == "__main__":
    main()
